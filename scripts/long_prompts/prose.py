"""Minutes, messages of customers, and a handbook: long texts in which nothing is said twice."""
# ruff: noqa: E501, ISC004 - sentences are easier to read and to change whole

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from sentences import Writer

PEOPLE = (
    "Ms Adeyemi", "Mr Bergström", "Dr Castellanos", "Ms Dlamini", "Mr Eriksen", "Ms Fujita", "Mr Grabowski", "Ms Hallam",
    "Dr Ivanova", "Mr Jankovic", "Ms Khoury", "Mr Lindqvist", "Ms Moreau", "Mr Nakamura", "Ms O'Dowd", "Mr Petrakis",
)  # fmt: skip
PLACES = (
    "the north quay", "Miller's Field", "the old tannery", "Station Road", "the lower meadow", "the swimming hall",
    "St Anne's square", "the bus depot", "the primary school", "the weir", "Orchard Lane", "the market hall",
)  # fmt: skip
WHEN = (
    "before the summer break", "by the end of the quarter", "within six weeks", "in the second half of October",
    "as soon as the frost is over", "in time for the budget", "not before next spring", "at the sitting after next",
)  # fmt: skip
TOPICS = (
    ("Renewal of the water main", "the main", "the contractor", "leaks"),
    ("Opening hours of the library", "the library", "the librarians", "visits"),
    ("Night buses at the weekend", "the night line", "the operator", "journeys"),
    ("Heating of the sports hall", "the boiler", "the clubs", "cold hours"),
    ("Trees along the ring road", "the avenue", "the gardeners", "saplings"),
    ("Meals in the day nurseries", "the kitchen", "the cooks", "portions"),
    ("The street market", "the market", "the stallholders", "stalls"),
    ("Flood defence at the brook", "the embankment", "the engineers", "sandbags"),
    ("Digital counter of the registry", "the counter", "the clerks", "applications"),
    ("Noise from the freight line", "the freight line", "the railway", "trains a night"),
    ("Extension of the cemetery", "the new field", "the parish", "plots"),
    ("Volunteer fire brigade", "the brigade", "its captain", "calls"),
    ("Playground surfaces", "the playground", "the parents", "accidents"),
    ("Solar panels on public roofs", "the panels", "the utility", "kilowatt hours"),
    ("Lease of the boathouse", "the boathouse", "the rowing club", "moorings"),
    ("Winter service", "the gritting plan", "the depot", "tonnes of salt"),
    ("School entrance in two shifts", "the school", "the teachers", "pupils"),
    ("Museum depot", "the depot", "the curator", "crates"),
)
REPORTED = (
    "{who} reported that {thing} had cost {many} more than planned, chiefly because of work at {place}.",
    "According to {who}, the number of {unit} rose from {n} to {n} over the period.",
    "{who} recalled that {crew} had asked for a decision {when}, and had received {n} letters on the matter since.",
    "A survey of {many} households, presented by {who}, found {share} percent in favour of keeping {thing} as it is.",
    "The accounts show {many} spent so far, of which {share} percent went to {place}.",
    "{who} explained that {crew} could begin at {time} instead of {time}, which would spare {place} the morning traffic.",
)
ARGUED = (
    "{who} doubted the figure and asked how the {unit} had been counted at {place}.",
    "{who} held that {thing} must not be treated apart from the plans for {place}.",
    "For {who} the question was less one of money than of who answers when {crew} cannot be reached after {time}.",
    "{who} warned that a delay of {n} weeks would move everything past the deadline of the regional fund.",
    "{who} pointed out that {n} of the people affected live near {place} and had not been asked.",
    "{who} suggested a trial of {n} weeks, after which {crew} would show what had become of the {unit}.",
    "{who} agreed in principle, but wanted the share of the town limited to {share} percent.",
    "{who} asked for it to be recorded that the earlier promise about {place} had been made without a vote.",
    "{who} quoted a neighbouring town in which {thing} had been handed to a cooperative of {n} members.",
    "{who} replied that nobody at {place} would notice the difference before {time}.",
)
DECIDED = (
    "It was decided by {n} votes to {n} that {crew} submit a revised offer {when}.",
    "The item was adjourned; {who} will visit {place} and report {when}.",
    "The proposal was adopted with a limit of {many}, to be reviewed {when}.",
    "The motion failed; {who} announced a new one limited to {place}.",
    "It was agreed without a vote that {thing} stays open until {time} on {n} days of the year.",
    "{who} and {who} will draft a letter to {crew} about the {unit}, to be sent {when}.",
)

GOODS = (
    "kettle", "desk lamp", "rucksack", "rain jacket", "coffee grinder", "office chair", "bicycle light", "tent",
    "blender", "wall clock", "printer", "pair of boots", "garden hose", "bread tin", "travel iron", "head torch",
)  # fmt: skip
OPENING = (
    "I ordered a {thing} on the {n}th and what arrived {when} was something else.",
    "This is my third message about the {thing} with the order number {many}.",
    "Good evening, the {thing} stopped working after {n} days.",
    "I am writing on behalf of my mother, who bought a {thing} at your shop near {place}.",
    "Let me say first that the {thing} itself is lovely.",
    "Your driver left the {thing} with somebody at {place} whom I do not know.",
)
COMPLAINT = (
    "The parcel was open on one side, and {n} of the small parts were missing.",
    "On the telephone I was told to wait {n} days, then another {n}.",
    "The bill says {many} cents, the website said {many}.",
    "It makes a noise like a tram turning at {place}, but only after {time}.",
    "I have a photograph of the label, taken at {time}, which shows the wrong size.",
    "The instructions speak of {n} screws; there are {n}.",
    "Somebody signed for it at {time}, when all of us were at {place}.",
    "The colour is nothing like the picture, my children call it swamp number {n}.",
    "I paid twice, once by card and once by transfer, {many} altogether.",
    "Your assistant on the website answered {n} times that it was happy to help.",
)
WISH = (
    "Please send the right one to {place}, I am at home until {time}.",
    "I want my money back {when}, to the account ending in {many}.",
    "A discount of {share} percent would settle the matter for me.",
    "I do not need an answer, only stop sending reminders about the {thing}.",
    "Can somebody ring me after {time}, at the number in my account?",
    "If it is not collected {when}, I shall give it to the jumble sale at {place}.",
)
OPENING_DE = (
    "am {n}. habe ich bei Ihnen eine Bestellung aufgegeben (Nr. {many}), und bis heute ist nur die Hälfte da.",
    "Ihr Fahrer hat das Paket um {time} Uhr bei jemandem abgegeben, den hier keiner kennt.",
    "vorweg: Ihr Laden ist großartig, aber der Artikel {many} ist es nicht.",
    "ich schreibe für meinen Vater, der mit Ihrer Hotline {n} Minuten in der Warteschleife hing.",
)
COMPLAINT_DE = (
    "Von den {n} Schrauben in der Anleitung lagen {n} bei.",
    "Auf der Rechnung stehen {many} Cent mehr als auf der Seite, auf der ich um {time} Uhr bestellt habe.",
    "Nach {n} Tagen löste sich die Naht, und zwar genau dort, wo Ihr Film sie so lobt.",
    "Am Telefon hieß es, in {n} Tagen sei alles da; das war vor {n} Wochen.",
    "Das Gerät summt ab {time} Uhr so laut, dass die Katze auszieht.",
    "Ich habe versehentlich zweimal bezahlt, zusammen {many} Cent.",
    "Der Karton war an {n} Stellen eingedrückt, der Inhalt an {n}.",
    "Die Farbe nennt sich Sandton {n}, ist aber eindeutig Nummer {n}: Matsch.",
)
WISH_DE = (
    "Bitte rufen Sie nach {time} Uhr an, die Nummer steht im Konto.",
    "Ein Nachlass von {share} Prozent wäre für mich in Ordnung.",
    "Ich möchte das Geld zurück, auf das Konto, das auf {many} endet.",
    "Schicken Sie einfach die fehlenden {n} Teile, dann ist alles gut.",
    "Holen Sie es bis zum {n}. ab, sonst steht es bei Nummer {many} im Fundus.",
)

DEVICES = (
    ("dishwasher", "the spray arm", "the salt container"), ("steam boiler", "the relief valve", "the float"),
    ("label printer", "the print head", "the ribbon"), ("cold room", "the evaporator", "the door seal"),
    ("dough mixer", "the bowl guard", "the hook"), ("goods lift", "the gate switch", "the guide rail"),
    ("packing line", "the conveyor belt", "the light barrier"), ("deep fryer", "the thermostat", "the drain tap"),
    ("slicer", "the blade cover", "the carriage"), ("ventilation", "the grease filter", "the fan belt"),
    ("alarm system", "the control panel", "the backup battery"), ("forklift", "the mast chain", "the charger"),
    ("proving cabinet", "the humidifier", "the water tray"), ("cash desk", "the receipt roll", "the drawer lock"),
    ("ice machine", "the water filter", "the scoop"), ("oven", "the steam nozzle", "the deck stone"),
)  # fmt: skip
RULES = (
    "Check {part} every {n} days and write the date on the card beside the {device}.",
    "If {part} is warm to the touch before {time}, switch the {device} off at the wall and tell {who}.",
    "Nobody opens {part} of the {device} alone; the second person stands where both can see the switch.",
    "The {device} may run unattended for at most {n} minutes, between {time} and {time} not at all.",
    "Spare parts for {part} lie in drawer {n} of the workshop; whoever takes the last one tells {who}.",
    "Clean {part} of the {device} with the green brush, never with the blue one, which is kept for food.",
    "An error code between {n} and {many} on the {device} means that {part} is not seated.",
    "After {n} hours of work {part} is replaced, even if it looks sound; the reason is the accident of the year in which "
    "we had {n} of these machines.",
    "When the {device} is moved, {part} comes off first and is carried separately.",
    "{who} holds the key to the {device}; on days off it lies at the desk until {time}.",
    "Take a reading at {part} at {time} and compare it with the mark at {share} percent.",
    "The guarantee of the {device} ends if {part} is repaired by anyone but the supplier, who comes within {n} days.",
)

_HALLS = ("{}", "{} of the second hall", "{} in the shop", "{} in reserve")
_FULL = {"who": PEOPLE, "place": PLACES, "when": WHEN, "thing": GOODS}


def grown(part: Callable[[int], str], characters: int) -> str:
    """Join parts with blank lines until the text is long enough."""
    parts: list[str] = []
    for number in count(1):
        parts.append(part(number))
        if sum(map(len, parts)) + 2 * len(parts) >= characters:
            return "\n\n".join(parts)
    raise AssertionError("count has no end")


def minutes(source: random.Random, characters: int) -> str:
    """Return the minutes of a council, item by item."""
    writer = Writer(source, _FULL)
    topics = source.sample(TOPICS, len(TOPICS))

    def item(number: int) -> str:
        title, thing, crew, unit = topics[(number - 1) % len(topics)]
        again = "" if number <= len(topics) else f", continued ({number})"
        given = {"thing": thing, "crew": crew, "unit": unit}
        said = writer.sentences(REPORTED, source.randint(1, 3), **given)
        said += writer.sentences(ARGUED, source.randint(2, 5), **given)
        said.append(writer.sentence(DECIDED, **given))
        return f"Item {number}: {title}{again}\n{' '.join(said)}"

    return grown(item, characters)


def messages(source: random.Random, characters: int) -> str:
    """Return numbered messages of customers, every fourth in German."""
    writer = Writer(source, _FULL)

    def message(number: int) -> str:
        name = source.choice(PEOPLE).split()[-1]
        thing = source.choice(GOODS)
        if number % 4 == 0:
            parts = [f"Guten Tag, {writer.sentence(OPENING_DE)}"]
            parts += writer.sentences(COMPLAINT_DE, source.randint(1, 3))
            parts.append(writer.sentence(WISH_DE))
        else:
            parts = [writer.sentence(OPENING, thing=thing)]
            parts += writer.sentences(COMPLAINT, source.randint(1, 3))
            parts.append(writer.sentence(WISH, thing=thing))
        return f"Message {number} ({name}):\n{' '.join(parts)}"

    return grown(message, characters)


def handbook(source: random.Random, characters: int) -> str:
    """Return a bakery's handbook, a section for each machine."""
    writer = Writer(source, _FULL)
    devices = source.sample(DEVICES, len(DEVICES))

    def section(number: int) -> str:
        device, *parts = devices[(number - 1) % len(devices)]
        device = _HALLS[(number - 1) // len(devices)].format(device)
        heading = f"{number}. The {device}"
        rules = writer.sentences(RULES, source.randint(4, 7), device=device, part=source.choice(parts))
        return heading + "\n" + "\n".join(f"{number}.{index} {rule}" for index, rule in enumerate(rules, start=1))

    return grown(section, characters)
