"""Words that the demo tasks are built from.

Changing a list changes the fixed test cases and needs a new training.
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TITLE_FIRST = _words(
    """
    Daily Weekly Monthly Yearly Total Local Global Summer Winter Spring Autumn Morning Evening Night
    City North South East West Online Public Home Early Late New Old Urban Rural School Harbor
    Mountain River
    """
)
TITLE_LAST = _words(
    """
    Rain Snow Sales Trains Birds Books Apples Visits Votes Boats Cars Bikes Trees Games Films Songs
    Cakes Stars Storms Floods Fish Bread Coffee Tea Milk Rice Water Energy Power Heat Wind Sun Frost
    Clouds Letters Calls Trips Tours Hotels Shops Tickets Goals Points Tests Pupils Nurses Clocks
    Lamps
    """
)
# Plain words for copying, fillers and values.
WORDS = _words(
    """
    able above actor after again agent alarm album angle animal answer apple april arm army arrow
    artist attic autumn baby bag baker ball banana bank basket beach bean bear bell bench berry bird
    blanket boat bone book border bottle bowl box branch brass bread bridge brother brush bucket bus
    butter button cabin cable cake camel camera candle canoe captain carpet carrot castle cat cave
    chain chair chalk cheese cherry chess chicken circle clay clock cloud coach coat coffee coin
    comet copper coral corner cotton cousin crane cream crow crown cup curtain dance desert desk
    diamond dinner doctor dog door dragon dream dress drum duck eagle ear earth egg elbow engine
    evening eye fabric farmer feather fence field finger fire fish flag flame flower flute fog
    forest fork fox friend frog fruit garden garlic gate ghost giant glass glove goat gold grain
    grape grass guitar hammer hand harbor hat hawk heart hill honey hood horse hotel house ice iron
    island jacket jar jelly jewel juice jungle kettle key king kitchen kite knee knife lake lamp
    lawyer leaf lemon letter lion lizard lock magnet map maple marble market meadow melon metal milk
    mirror monkey moon morning moss mountain mouse museum music nail neck needle nest night north
    nose nurse oak ocean office oil olive onion orange orchid otter oven owl paint palace paper
    parrot path peach pearl pencil pepper piano pigeon pilot pine pirate planet plate plum pocket
    poem pond potato prince pumpkin puzzle queen rabbit radio rain ribbon rice ring river road robin
    rock roof room root rope rose ruby sailor salt sand school sea seed sheep shell ship shirt shoe
    silk silver singer sister sky smoke snail snow soap sock soup south spider spoon spring square
    squirrel stamp star station steam stone storm story stove straw street sugar summer sun swan
    sweater table tailor tea teacher temple tent thread throat thunder tiger toast tomato tooth
    tower town toy train tree trumpet tulip tunnel turtle uncle valley vase velvet village violin
    voice wagon wall walnut watch water wave wax web well west whale wheat wheel whistle willow wind
    window wine winter wolf wood wool worm yard
    """
)
OBJECTS = _words(
    """
    box door key card room shelf drawer locker ticket house car boat safe bag gate tower tent cabin
    engine parcel
    """
)
NAMES = _words(
    """
    Anna Ben Clara David Emma Felix Greta Henry Ida Jonas Karla Leo Mia Nora Oscar Paula Robert
    Sofia Tom Vera
    """
)
CITIES = _words(
    """
    Oslo Paris Rome Vienna Berlin Madrid Lisbon Dublin Prague Athens Zurich Hamburg Boston Denver
    Tokyo Kyoto Delhi Cairo Lima Sydney
    """
)
ITEMS = _words(
    """
    lamp chair table clock radio camera jacket guitar kettle mirror carpet basket pencil bottle
    blanket ladder
    """
)
# Verbs and adverbs of filler sentences, which state nothing that is ever asked for.
VERBS = _words(
    """
    sees likes finds carries paints sells follows watches hides moves cleans opens draws holds takes
    wants
    """
)
ADVERBS = _words(
    """
    today slowly again quietly often early late twice gladly outside nearby alone
    """
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Be brief.",
    "You read charts.",
    "Answer with the fact only.",
    "You are luce-demo, a small model.",
)
