"""One run of tuner's own client; writes what it saw as JSON.

python ours.py CLIENT BASE_URL STREAMS REQUESTS TOKENS
"""

from __future__ import annotations

import asyncio
import json
import sys

from tuner.engines import engine
from tuner.load.drive import Load, drive
from tuner.load.http import HttpSlot
from tuner.load.stream import StreamSlot
from tuner.model.record import RequestStatus


def user_stamped(base_url: str) -> StreamSlot:
    """Return a slot whose stamps are this process's own."""
    from tuner.load.wire.transport import EpollTransport  # noqa: PLC0415 - the other client needs none

    return HttpSlot(base_url, transport=EpollTransport(uses_kernel_stamps=False))


CLIENTS = {"tuner": HttpSlot, "tuner-user-stamps": user_stamped}


async def main(client: str, base_url: str, streams: int, requests: int, tokens: int) -> None:
    """Run the load through the product's whole path: its slots, its tally, its engine."""
    load = Load(streams=streams, requests=requests, tokens=tokens)
    done = await drive(base_url, engine("sglang"), CLIENTS[client], load)
    seen = [
        {
            "name": record.prompt_id,
            "sent_s": record.sent_s,
            "stamps_s": record.chunk_s,
            "tokens": record.tokens,
            "merged": record.merged,
            "is_whole": record.status is RequestStatus.OK,
        }
        for record in done.records
    ]
    json.dump({"started_s": done.started_s, "ended_s": done.ended_s, "requests": seen}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6])))
