"""Takes API keys and tokens out of text that engines print."""

from __future__ import annotations

import re

MASK = "***"

# Names under which the engines pass and print secrets; argparse also takes prefixes of the flags.
_FLAG = r"--(?:admin-[a-z-]+|api-k[a-z-]*|hf-t[a-z]*|ssl-keyfile-p[a-z]*)"
_KEY = r"(?:admin_api_key|api_key|api_keys|hf_token|HF_TOKEN|OPENAI_API_KEY|ssl_keyfile_password)"
_QUOTED = r"(?P<secret>.*?)(?P<end>(?P=v)|(?m:$))"

_PATTERNS = (
    # a list of words, as JSON or as Python prints it: '--api-key', 'secret'
    re.compile(rf"""(?P<keep>(?P<q>\\?["']){_FLAG}(?P=q)\s*,\s*(?P<v>\\?["'])){_QUOTED}"""),
    # a command line: --api-key secret, --api-key=secret, --api-key 'a secret'
    re.compile(rf"""(?P<keep>{_FLAG}(?:\s+|=)(?P<v>\\?["'])){_QUOTED}"""),
    re.compile(rf"""(?P<keep>{_FLAG}(?:\s+|=))(?P<secret>[^\s"'\\]+)(?P<end>)"""),
    # a mapping or keyword: "api_key": "secret", api_key='secret', HF_TOKEN=secret
    re.compile(rf"""(?P<keep>\b{_KEY}\\?["']?\s*[:=]\s*(?P<v>\\?["'])){_QUOTED}"""),
    re.compile(rf"""(?P<keep>\b{_KEY}=)(?P<secret>(?!None\b)[^\s"',)\\]+)(?P<end>)"""),
    re.compile(r"""(?P<keep>\bBearer\s+)(?P<secret>[^\s"'\\]+)(?P<end>)"""),
)


def scrub(text: str) -> str:
    """Replace every secret by ``***``; text without one comes back as it was.

    Works a line at a time. Of a line that was cut inside a quoted secret the rest is taken out too;
    the other half of a cut secret, and one cut without quotes, cannot be recognised: hand over whole lines.
    """
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: found["keep"] + MASK + found["end"], text)
    return text
