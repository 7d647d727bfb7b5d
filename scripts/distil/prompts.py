"""Seed prompts for the target to answer: a small grammar over the kinds of request.

Nothing here is training *text*: the target writes that.  Most requests are the target's own, steered
by a few first words (openers.py); this grammar adds whole requests and frames around passages.  The
held-out prompts of evaluate_draft.py are not made from either.
"""

import random
import re
from dataclasses import dataclass

from . import openers

TOPICS = """the water cycle|black holes|volcanoes|honey bees|the French Revolution|solar panels
sleep|chess openings|sourdough bread|electric cars|the human heart|jazz music|coral reefs
budgeting|yoga|the Roman Empire|machine learning|photography|gardening in small spaces
climate change|vaccines|tea|public speaking|time management|dinosaurs|the Great Wall of China
coffee|football|marathon training|inflation|the moon landing|penguins|cloud computing
blockchain|meditation|Shakespeare|sailing|wolves|the Amazon rainforest|online privacy
job interviews|learning a language|recycling|wind energy|DNA|the stock market|earthquakes
ancient Egypt|cycling to work|remote work|cats|dogs|space telescopes|the printing press
healthy breakfasts|writing novels|video games|robots|the ocean floor|glaciers|rice|antibiotics
opera|modern art|the Olympic Games|trains|airplanes|the Silk Road|democracy|taxes|friendship
stress|teamwork|leadership|customer service|email etiquette|databases|computer viruses
the internet|gravity|magnets|the periodic table|photosynthesis|evolution|fractions
prime numbers|probability|geometry|poetry|folk tales|museums|libraries|schools|farming|cheese
chocolate|wine|bread|fishing|hiking|camping|snow|deserts|rivers|lakes|islands|mountains|Japan
Brazil|Canada|Kenya|India|Italy|Norway|Mexico|Paris|Leonardo da Vinci|Marie Curie
Albert Einstein|Isaac Newton|Mozart|Cleopatra|Ada Lovelace|Nikola Tesla|home insurance
mortgages|saving energy at home|interior design|minimalism|public transport|bridges|skyscrapers
smartphones|social media|podcasts|advertising|small businesses|startups|supply chains|nutrition
vitamins|back pain|allergies|first aid|dental care|eyesight|running shoes|swimming|tennis
knitting|woodworking|pottery|painting|guitar lessons|singing|dance|theatre|film|animation
comic books|weather forecasts|hurricanes|the seasons|stars|Mars|comets|satellites|rockets
time zones|calendars|electric circuits|batteries|lasers|microscopes|3D printing|drones
self-driving cars|cybersecurity|open source software|version control|unit testing|web design
operating systems|compilers|encryption|parenting|pets|birthdays|weddings|holidays|neighbours
volunteering|charity|elections|human rights|elephants|owls|sharks|butterflies|oak trees
mushrooms|tomatoes|bamboo|orchids|forest fires|soil"""

TASKS = """reverse a string|check whether a number is prime|sort a list of numbers
compute the factorial|find the largest element in a list|count the vowels in a string
merge two sorted lists|flatten a list|compute Fibonacci numbers|read a CSV file
remove duplicates from a list|check for a palindrome|count word frequencies in a text
convert Celsius to Fahrenheit|find the greatest common divisor|generate a random password
implement binary search|implement a stack|implement a queue|sum the digits
validate an email address|parse a date|rotate a list by k places|find the second largest number
transpose a matrix|multiply two matrices|find common elements of two lists
reverse the words in a sentence|implement bubble sort|implement quick sort|implement merge sort
count the lines in a file|download a web page|write a JSON file|group items by key
compute the average and median|implement a linked list|traverse a binary tree
check balanced brackets|compute the power of a number|convert a number to binary
find all anagrams|find missing numbers in a range|capitalise each word
print a multiplication table|play rock paper scissors|build a simple calculator
manage a to-do list|model a bank account|model a library of books|compute the area of a circle
compute compound interest|find the shortest path in a graph|cache function results
retry a failed request|log messages to a file|shuffle a deck of cards|compare two dictionaries
split a list into chunks|find the longest word|encrypt text with a Caesar cipher
decode Morse code|roll dice|compute prime factors|draw a triangle of stars|filter even numbers
convert a string to an integer|measure how long a function takes|sort a dictionary by value
count down from ten|connect to a database|create a table of users
select the top customers by revenue"""

NAMES = "Anna|Ben|Carla|David|Emma|Farid|Grace|Hugo|Ines|Jack|Kofi|Lena|Marco|Nadia|Oscar|Priya|Sam"
ITEMS = (
    "apples|books|pencils|marbles|tickets|cookies|stamps|oranges|toy cars|balloons|stickers|cups"
)
LANGUAGES = "Python|Python|Python|JavaScript|Java|C|C++|Go|Rust|SQL|Bash|TypeScript|Ruby"
TONGUES = "French|Spanish|German|Italian|Portuguese|Dutch"
PEOPLE = "a child|a beginner|a student|an expert|my grandmother|a friend|a ten-year-old|a colleague"
STYLES = "formal|friendly|funny|simple|persuasive|professional|poetic|concise|polite|dramatic"
FORMS = (
    "poem|short story|haiku|letter|speech|blog post|news article|dialogue|song|limerick|diary entry"
)
OBJECTS = "user|book|movie|car|recipe|city|product|employee|order|song|student|event|house|invoice"
FIELDS = "name|age|title|price|year|colour|email|city|rating|author|date|quantity|category|country"
GOODS = (
    "laptop|bicycle|blender|backpack|desk lamp|phone|coffee maker|tent|watch|sofa|camera|headphones"
)

LISTS = {
    "topic": "|".join((TOPICS, openers.PLACES, openers.FIELDS_OF_STUDY)),
    "topic2": TOPICS,
    "task": TASKS,
    "name": "|".join((NAMES, openers.FIRST_NAMES)),
    "name2": NAMES,
    "item": ITEMS,
    "lang": LANGUAGES,
    "tongue": TONGUES,
    "who": PEOPLE,
    "style": STYLES,
    "form": FORMS,
    "object": "|".join((OBJECTS, openers.NOUNS)),
    "f1": FIELDS,
    "f2": FIELDS,
    "f3": FIELDS,
    "goods": GOODS,
    "noun": openers.NOUNS,
    "adj": openers.ADJECTIVES,
    "place": openers.PLACES,
    "first": openers.FIRST_NAMES,
    "first2": NAMES,
    "last": openers.SURNAMES,
    "field": openers.FIELDS_OF_STUDY,
    "time": openers.TIMES,
    "unit": openers.UNITS,
    "verb": openers.VERBS,
    "start": openers.STARTS,
}

TEMPLATES = {
    "chat": """Hi! Can you tell me about {topic}?
I have been thinking about {topic} lately. Any thoughts?|I am bored. Talk to me about {topic}.
What do you like about {topic}?|Hello, how are you today?
I feel nervous about {topic}. What should I do?|Give me some advice on {topic}.|Who are you?
My friend {name} loves {topic}. What present should I buy?|Let's talk about {topic}.
I want to get into {topic}. Where do I start?|Tell me a joke about {topic}.|good morning
Recommend something to read about {topic}.|Which is better: {topic} or {topic2}?
I had an argument with {name} about {topic}. How can I fix it?
Thanks! Now tell me about {topic}.|Help me plan a weekend around {topic}.
Pretend you are {name} and tell me about {topic}.|Tell me an interesting fact about {topic}.
Write a message to {name} about {topic}.""",
    "write": """Write a {form} about {topic}.|Write a {style} {form} about {topic}.
Write a paragraph about {topic}.|Write two paragraphs about {topic} for {who}.
Describe {topic} in a {style} tone.|Write an essay on {topic}.
Compose a {form} in which {name} discovers {topic}.|Write a product description for a {goods}.
Write a {style} email to {name} about a {goods}.|Tell me a story about {name} and {topic}.
Start a story with the sentence: "{name} never liked {topic}."
Write an introduction for a talk on {topic}.|Write a review of a {goods}.
Write a short biography of {name}, who studies {topic}.
Draft a {style} announcement about {topic}.
Write a dialogue between {name} and {name2} about {topic}.""",
    "code": r"""Write a {lang} function to {task}.|Write a {lang} program to {task}.
How do I {task} in {lang}?|In {lang}, {task}. Add comments.|Show me {lang} code to {task}.
Write a {lang} class to {task}.
Implement a function in {lang} to {task} and show an example of its use.|{lang}: {task}
Write a short script to {task}, then explain it.
Write unit tests for a {lang} function to {task}.
Write a regular expression that matches a {f1}.
Write an SQL query that lists each {object} by {f1}.
Create a {lang} class for a {object} with {f1} and {f2}.|Write HTML for a page about {topic}.
What does this error mean: name '{f1}' is not defined?
Fix this code: def f({f1}) return {f1} + 1|Complete this function:\ndef {f1}_{f2}({f1}, {f2}):
Give me a one-line {lang} snippet to {task}.""",
    "list": """List five facts about {topic}.|List 10 ideas for {topic}.
Give me three reasons to care about {topic}.|What are the pros and cons of {topic}?
Make a numbered list of steps to learn about {topic}.|Name seven things related to {topic}.
Make a checklist for {topic}.|List the main parts of {topic}.
Make a shopping list for a {object} party.|Give me 5 titles for a book about {topic}.
List common mistakes in {topic}.|Create a weekly plan for {topic}.
List questions to ask about {topic}.|Bullet points only: what should {who} know about {topic}?
Make a table comparing {topic} and {topic2}.""",
    "maths": """{name} has {n} {item} and buys {m} more. How many {item} does {name} have now?
What is {n} + {m}?|What is {n} times {m}?|What is {n}% of {m}?|Solve for x: {k}x + {n} = {m}.
A {goods} costs ${m}. It is reduced by {n}%. What is the new price?|Calculate {n} - {k} * {m}.
{name} shares {n} {item} equally among {k} friends. How many does each get?
A train goes {m} km in {k} hours. What is its speed?
What is the area of a rectangle {n} by {m}?
{name} has {n} {item}, {name2} has {k} times as many. How many have they together?
If {k} {item} cost ${n}, how much do {m} {item} cost?
Is {n} a prime number? Explain step by step.|What is the next number: {k}, {n}, {m}?
Convert {n} kilometres to miles.|Explain how to add {k}/{n} and 1/{m}.""",
    "json": """Write a JSON object for a {object} with the fields {f1}, {f2} and {f3}.
Give me a JSON array of three {object}s, each with {f1} and {f2}.
Return only JSON: {f1} and {f2} of a {object}.|Create an example {object} record in JSON.
Write YAML for a {object} with {f1} and {f2}.|Turn this into JSON: {name}, {n}, {goods}.
Write a JSON schema for a {object}.|Make a CSV with the columns {f1}, {f2}, {f3} and four rows.
Write a config file in JSON for {topic}.
Give me JSON with keys "{f1}" and "{f2}" about {topic}.
Represent this as JSON: {name} ordered {n} {item} for ${m}.""",
    "question": """What is {topic}?|How does {topic} work?|Why is {topic} important?
Who invented {topic}?|Explain {topic} to {who}.|Explain {topic} in one sentence.
What are the causes of {topic}?|When did {topic} begin?
What is the difference between {topic} and {topic2}?|Where can I find {topic}?
How has {topic} changed over time?|How do I get better at {topic}?|Is {topic} dangerous?
What is the history of {topic}?|How many kinds of {topic} are there?
What happens if there is no {topic}?|Can you explain {topic} step by step?
What is the capital of {topic}?|What should {who} know about {topic}?
How are {topic} and {topic2} related?|Define {topic}.|Why do people like {topic}?""",
    "translate": """Translate to {tongue}: I would like to learn about {topic}.
How do you say "{item}" in {tongue}?
Translate into {tongue}: "{name} bought {n} {item} yesterday."
Translate this sentence into {tongue}: The {goods} is on the table.
Give me five {tongue} phrases about {topic}.|What does "{topic}" mean in {tongue}?
Write a short text about {topic} in {tongue}.
Translate "Good morning, {name}. How are you?" into {tongue}.""",
}

WRAPS = {
    "prose": r"""Summarize the following text:\n\n{passage}
{passage}\n\nSummarize this in one sentence.
Give me a short summary of this passage.\n\n{passage}|{passage}\n\nTL;DR
What is the main point of this text?\n"{passage}"|Summarise in three bullet points:\n{passage}
Rewrite this in a {style} tone:\n\n{passage}|Rewrite the following paragraph:\n{passage}
Please correct the grammar of this text: {passage}|Make this text shorter:\n\n{passage}
Rewrite this text for {who}.\n\n{passage}|Paraphrase: {passage}|Fix the punctuation:\n{passage}
{passage}\n\nRewrite the text above in a more {style} way.|Proofread this: {passage}
Continue this text:\n{passage}|Improve the following text.\n\n"{passage}"
Change this to the past tense: {passage}|List the key words in this text:\n{passage}
Extract all names and places from this text: {passage}
Extract the facts from the passage as a list.\n\n{passage}
{passage}\n\nList every date and number in the text.|Extract the main facts as JSON: {passage}
Translate to {tongue}:\n{passage}|Translate the text into {tongue}.\n\n{passage}
Read the text and answer: what is it about?\n\n{passage}
{passage}\n\nQuestion: What is the most important idea?
Based on this text, why does it matter?\n{passage}
Text: {passage}\n\nWho or what is mentioned first?
Write three questions about this text:\n{passage}|Give this text a title:\n\n{passage}
Repeat the following text exactly:\n{passage}
Is the tone of this text positive or negative?\n{passage}
Turn this into an email to {name}:\n{passage}
Turn the following into a list of steps:\n{passage}""",
    "code": r"""Explain this code:\n\n{passage}|Add comments to this code:\n{passage}
What does this do?\n{passage}|Find the bug in this code:\n\n{passage}
Rewrite this in {lang}:\n{passage}|Add type hints:\n{passage}
Write tests for this code.\n\n{passage}|Add error handling to the following code:\n{passage}
Rename the variables to be clearer:\n{passage}|Refactor this code:\n\n{passage}
Add a docstring:\n{passage}""",
}

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are an expert programmer. Answer with code.",
    "You are a careful editor.",
    "You are a patient teacher. Explain things simply.",
    "You are a friendly travel guide.",
    "Answer in one short sentence.",
    "You are a helpful assistant that always answers in JSON.",
)

FREE_SHARE = 0.25
WRITERS = {"prose": ("write", "question", "list"), "code": ("code",)}
"""Kinds of prompt whose answers serve as passages of each class."""


@dataclass(frozen=True, slots=True)
class Wrap:
    """A request around a passage that the target writes first."""

    passage_class: str
    before: str
    after: str


def split_templates(text: str) -> list[str]:
    """The entries of a block: one or several a line, separated by bars."""
    parts = (part for line in text.splitlines() for part in line.split("|"))
    return [part.strip().replace("\\n", "\n") for part in parts if part.strip()]


def fill(template: str, rng: random.Random) -> str:
    """Replace every slot but {passage} by a random entry, itself filled, or a number."""
    numbers = {
        "n": rng.randint(2, 99),
        "m": rng.randint(10, 500),
        "k": rng.randint(2, 12),
        "year": rng.randint(1750, 2024),
    }

    def slot(match: re.Match[str]) -> str:
        name = match[1]
        if name in numbers:
            return str(numbers[name])
        if name == "Field":
            return rng.choice(CHOICES["field"]).capitalize()
        return match[0] if name == "passage" else fill(rng.choice(CHOICES[name]), rng)

    return re.sub(r"\{(\w+)\}", slot, template)


def roughen(text: str, rng: random.Random) -> str:
    """Vary a prompt as people do: lower case, no full stop, a courtesy."""
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12 and text[-1] in ".?":
        text = text[:-1]
    if rng.random() < 0.08:
        text = "Please " + text[0].lower() + text[1:]
    if rng.random() < 0.06:
        text = "Can you help me? " + text
    return text


CHOICES = {name: split_templates(block) for name, block in LISTS.items()}
TOPIC_SLOTS = ("topic", "topic2", "noun")


def add_topics(topics: list[str]) -> None:
    """More things to ask about, for every seed made from now on."""
    for slot in TOPIC_SLOTS:
        CHOICES[slot].extend(topics)


def make_prompts(count: int, seed: int) -> list[tuple[str, str]]:
    """Distinct (kind, prompt) pairs, the kinds equally frequent as far as they last."""
    rng = random.Random(seed)
    templates = {kind: split_templates(block) for kind, block in TEMPLATES.items()}
    kinds = list(templates)
    made: dict[str, str] = {}
    for trial in range(count * 4):
        kind = kinds[trial % len(kinds)]
        made.setdefault(roughen(fill(rng.choice(templates[kind]), rng), rng), kind)
        if len(made) == count:
            break
    return [(kind, prompt) for prompt, kind in made.items()]


def make_openers(count: int, seed: int) -> list[str]:
    """First words of requests, as a user might type them; many are empty or short and repeat.

    FREE_SHARE of them leave the kind to the target, half of these everything.
    """
    rng = random.Random(seed)
    blocks = {kind: split_templates(block) for kind, block in openers.OPENERS.items()}
    free, kinds = blocks.pop("free"), list(blocks.values())
    made = []
    for _ in range(count):
        if rng.random() < FREE_SHARE:
            made.append(rng.choice(free) if rng.random() < 0.5 else "")
        else:
            made.append(fill(rng.choice(rng.choice(kinds)), rng))
    return [text[0].lower() + text[1:] if text and rng.random() < 0.08 else text for text in made]


def make_starts(count: int, seed: int) -> list[str]:
    """Beginnings of passages (plain text, no chat)."""
    rng = random.Random(seed)
    return [fill("{start}", rng) for _ in range(count)]


def make_wraps(count: int, seed: int) -> list[Wrap]:
    """Requests about a passage: the two halves around its place."""
    rng = random.Random(seed)
    classes = [(c, t) for c, block in WRAPS.items() for t in split_templates(block)]
    wraps = []
    for _ in range(count):
        passage_class, template = rng.choice(classes)
        before, after = fill(template, rng).split("{passage}")
        wraps.append(Wrap(passage_class, before, after))
    return wraps
