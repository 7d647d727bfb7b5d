"""Beginnings of requests and of passages that the target goes on with by itself.

A small model's own requests are natural in style but narrow in kind: nearly all ask it to write or
to explain something.  A few first words choose the kind and the scene, and the target, sampling,
supplies the rest: no two requests are alike, and passages hold names and numbers that have to be
copied rather than remembered.  An entry ends where the target takes over.
"""

NOUNS = """kitchen|garden|window|bridge|letter|boat|doctor|teacher|river|forest|neighbour|station
market|chair|bicycle|guitar|mountain|computer|phone|coat|hospital|airport|bakery|farm
engine|lamp|mirror|blanket|ticket|museum|painter|sailor|nurse|lawyer|baker|pilot|engineer|judge
tortoise|horse|falcon|spider|rabbit|salmon|camel|squirrel|crow|donkey|lizard|goat|whale|beetle
lighthouse|factory|tunnel|harbour|stadium|temple|castle|cinema|prison|school bus|tractor|ferry
umbrella|hammer|kettle|scarf|suitcase|compass|notebook|candle|drum|violin|ladder|basket|clock
printer|keyboard|router|server|password|website|app|spreadsheet|invoice|contract|budget|survey
storm|flood|drought|heatwave|fog|sunrise|eclipse|harvest|festival|parade|concert|wedding|funeral
soup|salad|pancake|curry|pizza|sandwich|cake|noodles|stew|pie|omelette|smoothie|pickle|jam
company|committee|council|union|team|club|charity|bank|newspaper|university|laboratory|ministry
stranger|grandfather|twin|orphan|detective|wizard|knight|queen|astronaut|ghost|dragon|thief|robot
tooth|knee|shoulder|liver|skin|memory|dream|fever|cough|headache|diet|habit|hobby|fear|secret
road|roof|wall|garage|balcony|attic|cellar|fence|lawn|pond|well|path|stairs|floor|ceiling|sofa
medal|trophy|puzzle|riddle|map|treasure|key|ring|crown|sword|coin|stamp|photograph|statue|mask"""

ADJECTIVES = """old|new|small|large|red|blue|green|quiet|noisy|broken|expensive|cheap|famous|unknown
young|tired|hungry|curious|brave|shy|rude|kind|lazy|clever|strange|beautiful|ugly|dark|bright|cold
warm|wet|dry|heavy|light|fast|slow|early|late|local|national|wooden|golden|rusty|empty|crowded
dangerous|safe|lost|secret|simple|complicated|modern|ancient|lonely|cheerful|electric|digital"""

PLACES = """London|Berlin|Lagos|Nairobi|Lima|Toronto|Chicago|Boston|Seattle|Madrid|Lisbon|Rome
Athens
Istanbul|Cairo|Mumbai|Delhi|Bangkok|Hanoi|Seoul|Tokyo|Kyoto|Sydney|Auckland|Oslo|Stockholm|Helsinki
Warsaw|Prague|Vienna|Zurich|Dublin|Edinburgh|Havana|Bogota|Santiago|Texas|California|Alaska|Hawaii
Peru|Chile|Ghana|Morocco|Ethiopia|Turkey|Greece|Poland|Sweden|Finland|Vietnam|Nepal|Indonesia|Cuba
the Baltic Sea|the Sahara|the Alps|the Andes|Scotland|Wales|Bavaria|Sicily|Siberia|Patagonia"""

FIRST_NAMES = """Amir|Beatrice|Chen|Daniela|Elias|Fatima|George|Hannah|Ivan|Julia|Kenji|Laura
Miguel|Nora
Olga|Pedro|Qiang|Rosa|Samuel|Tara|Umar|Vera|William|Ximena|Yusuf|Zoe|Mr Brown|Mrs Okafor|Dr Singh
Ms Rossi|Professor Lind|Tom|Sara|Lucy|Ahmed|Greta|Pavel|Sofia|Mike|Jenny"""

SURNAMES = """Smith|Novak|Garcia|Tanaka|Mensah|Larsen|Kowalski|Moreau|Haddad|Nguyen|O'Brien|Silva
Johnson|Fischer|Ivanova|Kaplan|Reyes|Sato|Walker|Bianchi"""

FIELDS_OF_STUDY = """biology|physics|chemistry|economics|history|law|medicine|psychology|music
geography
astronomy|geology|linguistics|philosophy|politics|sociology|statistics|engineering|agriculture
architecture|archaeology|religion|literature|sport|cooking|finance|marketing|nursing|ecology
robotics"""

TIMES = """On Monday|On Tuesday evening|On Friday night|Last week|Last summer|In March|In the spring
Yesterday|This morning|In 1848|In 1923|In 1969|In 2004|In 2019|In the 1980s|At noon|After the war
During the winter|Two years ago|Next month|Every day|For centuries|In recent years|At 9:30"""

UNITS = "kg|km|litres|metres|miles|hours|minutes|dollars|euros|pounds|grams|inches|days|years"

STARTS = r"""The|A|In|It|My|We|I|She|He|They|There|When|This|Most|Many|Some|One|After|If|As
{time},|{time}, the|{time}, {first}|{time} a {noun}|{time} we|{time}, I|The {noun}|The {adj} {noun}
The {noun} was|The {noun} is|An|A {noun}|A {adj} {noun}|Our {noun}|Your {noun}|His {noun}|Her {adj}
{first}|{first} {last}|{first} {last} is|{first} {last} was born|{first} and {first2}|{first} works
{first} walked|{first} had always|{first} bought|{first} said|Dear {first},\n\n|Hi {first},\n\n
Hi {first}, I|Hello everyone,|Hi team,|Dear customers,|Dear Sir or Madam,\n\n|Dear neighbours,
{place} is|{place}, the|The city of {place}|People in {place}|The government of {place}
Visitors to {place}|A {noun} in {place}|The {noun} of {place}|{place} and|In {place},
Researchers at|Scientists have|A new study|A team of|According to|Experts|Students at|Officials in
Police in {place}|The company|The {noun} company|Our company|The committee|The meeting|The project
Once upon a time,|There was once|There was a {adj} {noun}|Long ago|It was a {adj} {noun}
It was a cold|The sun|The rain|The {adj}|Two {noun}s|Three {noun}s|Nobody|Everyone|Every {noun}
Because of the|Although|While|Despite|Before|Since {year}|By {year},|From {year} to|Between
Thank you for|I am writing|I'm writing to|I bought this {noun}|I ordered a {noun}|We are pleased
We stayed at|Please note|Please bring|Welcome to|Breaking news:|Notice:|To make|First, |Step 1:
Mix the|Heat the|{Field} is|The study of {field}|In {field},|The history of {field}|Modern {field}
{n} {unit} of|About {n} people|More than {n} {unit}|The {noun} costs|The price of|Sales of
The number of|The average|Animals such as|Plants|The human|The planet|Water|Energy|Light|Sound
The {noun}, which|{first} {last}, a {noun}|{first} {last} of|{first}, {first2} and|Call me at
Meeting on|Order number {m}|Name: {first} {last}\n|Title:|Date:|From: {first}\nTo: {first2}\n"""

OPENERS = {
    "free": """Can you|Could you|I want|I need|I'm|I am|How|What|Why|Who|When|Where|Which|Is|Are
Do|Does|Did|Should|Write|Create|Explain|Describe|Tell me|Give me|Help me|Make|List|Show|Find|Please
hi|hey|Hello|ok|So|Let's|My|The|If|In|A|Now|Imagine|Suppose|You are|Generate|Provide|Compare|Suggest
Design|Develop|Analyze|Discuss|Identify|Translate|Summarize|Rewrite|Convert|Calculate|Extract""",
    "chat": """hey, i|hi, my|Hi! I just|Hello! I|Hey there, do|I'm so|I feel|I feel like|I think my
What should I|What should I wear|What should I say|Can you recommend|Recommend me a|Do you think
Do you ever|Do you like|Are you|Have you|I need advice|Help! My {noun}|My {noun}|My {adj} {noun}
My sister|My brother keeps|My mother|My boss|My dog|My son|My best friend|My landlord|My colleague
I don't know how|I can't|I can't decide|I have been|I have a|I have to|I got|I lost|I found|I won
I just finished|I just bought|I started|I bought a {adj} {noun}|I broke my|I forgot|I hate|I love
Guess what|Today I|Tomorrow I|Yesterday my|This weekend|Is it normal|Is it okay|Should I|Should we
I'm planning|I'm bored|I'm thinking of|I'm worried about|I'm moving to {place}|I'm visiting {place}
I'm learning|I only have|Any tips|Any ideas|what's a good|what do you|who is|tell me something
Thanks for|Thank you!|Good evening|Good night|Let's play|Pretend|Tell me a story|Tell me about your
How was|How do you feel|How can I tell my|How do I ask|How would you|Where should I|Which {noun}
We are|We're having|Our {noun}|Someone|People say|It's my|It's raining|There's a {noun}""",
    "question": """Why do|Why do {noun}s|Why is|Why is the {noun}|Why are|Why does|Why did|Why can't
What is|What is a|What is the|What is the difference|What is the best|What was|What was the
What were
What are|What causes|What happens|What happens when|What makes|What does|What do {noun}s|What kind
How does|How does a|How does a {noun}|How do|How do {noun}s|How do people|How did|How did the|How is
How are|How are {noun}s|How many|How much|How long|How long does|How far|How old|How fast|How can
How to|Who was|Who invented|Who discovered|Who wrote|Who is|When was|When did|When is|Where is
Where do|Where does|Which country|Which animal|Which is|Is it true|Is it better|Is it safe|Is there
Is {field}|Are there|Are {noun}s|Can a {noun}|Can {noun}s|Can you explain|Does|Do {noun}s|Did
Explain|Explain how|Explain why|Explain the|Explain the difference|In {field}, what|In {field}, why
Define|Describe how|Describe the|What role|What is {field}|Who are the|Tell me about
Tell me about the
Tell me why|I don't understand|What does the word|What does it mean|What is the meaning
Could you explain
What is known about|What is special|What was life like|In simple terms, what|In {place}, what
What is the capital|What language|What do we know about {place}|Why was {place}|How did {place}
Why is {place}|Why was the|What is the purpose|What are the main|What are the symptoms""",
    "list": """List|List the|List some|List three|List five|List {k}|List {k} ways|List {k} reasons
Give me {k}|Give me a list|Give me {k} ideas|Give me {k} names for|Give me {k} tips|Name {k}
Name some
What are some|What are some ways|What are some {adj}|What are the|What are the steps|What are {k}
Pros and cons of|Advantages of|Disadvantages of|Steps to|The steps for|Steps for making|Ideas for
Ideas for a {noun}|Tips for|Ways to|Ten|Five|Three|Five {adj}|Three {adj} ways
Things to do in {place}
Things to|Things a {noun}|Make a list|Make a packing list|Make a shopping list|Make a to-do list
Make a checklist|Create a list|Create a schedule|Create a plan|Plan a|Plan a trip to {place}
Suggest some|Suggest {k}|Suggest {k} names|Brainstorm|Brainstorm {k}|I need a list|I need {k} ideas
As bullet points,|In bullet points, explain|Bullet list:|Compare|Rank|Outline|Outline a
Name the|Top {k}|What do I need|What should I bring|Which {k}|Some ideas|Best""",
    "maths": """If {first} has {n}|If a {noun}|If I|If|A {noun} costs|A {noun} costs ${n}
A shop sells
A recipe|A recipe for|A bag|A box contains {n}|A box of|A train|A car|A bus|A rectangle|A triangle
A circle|A farmer has {n}|A class of {n}|A student|What is {n} *|What is {n} +|What is {n} -
What is {n} /|What is {n}%|What is {m} x {n}|What is the sum|What is the average|What is the area
What is the perimeter|What is the probability|What is the chance|What is the square root|Solve
Solve for|Solve the equation|Calculate|Calculate the|Compute|Find|Find the|Find two|Find x|Simplify
Factor|Convert {n}|Convert {m} {unit}|How many|How many {unit}|How much is|How much does|How far
How long will|I have {n}|I have ${m}|I earn|I save|I borrowed|I drove|I bought {n}|We need {n}
{first} has {n}|{first} is {n}|{first} runs|{first} buys|{first} earns|{first} reads
{first} and {first2}
The sum|The product|The price|The population|The length|The ratio|The distance|There are {n}
There are {n} {unit}|Two numbers|Three friends|Twelve|Half of|Divide|Multiply|Add|Subtract {n}|Round
Is {m}|The average of|The difference|The perimeter|A tank|A ladder|A die|A coin|A shirt
A {adj} {noun}""",
    "code": r"""Write a {lang} function|Write a {lang} function to
Write a {lang} program|Write a {lang} program that|Write {lang} code
Write a {lang} script|Write a {lang} class|How can I|How can I {verb} a|How do I {verb} a
How do you {verb} a|In {lang}, how|In {lang},|I need a {lang}|I need a {lang} script that
I need a function|I have a {lang} function|I have a list|I have a table|I get an error|Why does my
What does this {lang} code|What is a {adj} function|What is the difference between a|Create a
Create a {lang} class|Create a {lang} function|Create a function that|Create a simple|Implement
Implement a|Implement a {lang}|Build a|Here is my code:\n\ndef|Here is my {lang} code:\n\n```
Here is a function:\n\ndef|This function|This code|This {lang} code|My code|Fix this:\n\ndef
Fix the bug:\n\nfor|Fix this {lang} code:\n|Explain this code:\n\n|Explain this code:\n\ndef
Explain what this does:\n\nimport|Explain this {lang} code:\n\n```|Explain this query: SELECT
What will this print?\n\n|What does this print?\n\nfor i in|Complete the function:\n\ndef
def|def {verb}_|class|import|SELECT|function {verb}|public static|#include|for i in range(
#!/bin/bash
Write an SQL query|Write a query that|Write a regex|Write a bash|Write a bash script|Write a shell
Write HTML|Write CSS|Write a unit test|Write tests for|Write a recursive|Write a loop|Add a|Refactor
Convert this {lang}|Convert this to {lang}:\n\n|Translate this code to {lang}:\n|Optimize|Document
Add comments to this:\n\ndef|Show how to|Show me how to {verb}|Given a list|Given two|Given a string
Given an array|You are given|Using {lang},|Use {lang} to|How to {verb}|Git:|A {lang} function""",
    "json": r"""Write a JSON|Write a JSON object|Write a JSON file|Write JSON for|Give me a JSON
Give me JSON|Create a JSON|Create a JSON array|Create a JSON object|Return JSON
Return a JSON|Return only JSON|Produce a JSON|Produce JSON|Generate a JSON|Generate JSON data
Convert to JSON:\n|Convert this to JSON: {start}|Convert to JSON:\nName: {first}
Turn into JSON: {start}
Convert into JSON:\nCity: {place}|Convert this table to JSON:\n|Format as JSON:|Output a JSON
Make a JSON|Make a YAML|Write YAML|Write a YAML|Write XML|Create an XML|Create a CSV|Make a table
Make a table of|Create a table|Write a config|Write a configuration|Represent a {noun} as JSON
Represent the|As JSON:|A JSON object with|A JSON schema for|JSON for a {noun}
Describe a {noun} in JSON
List three {noun}s as JSON|Parse this:|Put this into JSON: {start}|Describe {first} as JSON""",
    "summary": r"""Summarize: {start}|Summarize this: {start}|Summarise this: {start}
Summarize this in {k} words: {start}|Summarise in one sentence: {start}
Summarize in two sentences: {start}
Summarize the following text:\n\n{start}|Summarize the following article.\n\n{start}
Summarize this email:\n\n{start}|Summarise this letter:\n\n{start}|Sum this up: {start}
Sum up: {start}
Write a short summary of this:\n\n{start}|Write a one-sentence summary.\n\n{start}|tl;dr\n\n{start}
TL;DR: {start}|Shorten this: {start}|Shorten the text below.\n\n{start}|Condense this: {start}
Give me the main points: {start}|Give me a brief summary.\n\n{start}|What is this about? {start}
What is the main idea? {start}|What are the main points of this text?\n\n{start}
What happens in this story? {start}|What is the message of this text?\n"{start}
Can you summarize this for me? {start}|Can you sum this up?\n\n{start}|Please summarize:\n{start}
I have no time to read this, what does it say?\n\n{start}|Explain this news briefly: {start}
Summarize the key points as bullets:\n\n{start}|In short, what does this say? {start}
Here is a text. {start}|Read this: {start}|{start}""",
    "rewrite": r"""Rewrite this: {start}|Rewrite: {start}|Rewrite this sentence: {start}
Rewrite this to be more {style}: {start}|Rewrite in a {style} tone: {start}
Rewrite for a child: {start}
Make this more {style}: {start}|Make this sound {style}: {start}|Make this shorter: {start}
Make this clearer: {start}|Make it {style}:\n{start}|Say this in a {style} way: {start}
Improve this: {start}|Improve this sentence: {start}|Improve my email:\n\n{start}|Edit this: {start}
Correct this: {start}|Correct the grammar: {start}|Correct the mistakes: he|Correct the spelling: i
Fix the grammar: she don't|Fix this sentence: they was|Fix: i has|Proofread: {start}
Proofread this:\n{start}
Change this to past tense: {start}|Change to future tense: {start}
Change into passive voice: {start}
Use the active voice: {start}|Turn this into a question: {start}|Turn this into a headline: {start}
Turn this into an email: {start}|Turn this into a poem: {start}|Simplify: {start}
Simplify this: {start}
Paraphrase: {start}|Paraphrase this: {start}|Rephrase: {start}|Rephrase this sentence: {start}
Expand this: {start}|Continue: {start}|Finish this story: {start}|Finish the sentence: {start}
Replace the adjectives: {start}|Use simpler words: {start}|Write this as a tweet: {start}
Write this in the first person: {start}|Write the opposite: {start}
Combine these sentences: {start}""",
    "translate": r"""Translate into {tongue}: {start}|Translate to {tongue}: {start}
Translate: {start}
Translate to {tongue}: "{start}|Translate this to {tongue}:\n{start}
Translate the sentence into {tongue}: {start}
Please translate into {tongue}: {start}|Please translate this to {tongue}: {start}
In {tongue}: {start}
How do I say|How do I say '|How do you say "|How do you say {noun} in {tongue}|How to say
What is the {tongue} word for|What is {noun} in {tongue}|What does "
What does the word|What is the plural|Translate from {tongue}:|Translate from {tongue} to English:
Translate into English:|{tongue}: {start}|Write in {tongue}:|Write a {tongue} sentence
Give me a {tongue}
Teach me some {tongue}|Say '{start}|Put into {tongue}: {start}|I need this in {tongue}: {start}""",
    "extract": r"""Extract the names: {start}|Extract all names from this text: {start}
Extract the dates: {start}|Extract the numbers: {start}|Extract all the places: {start}
Extract the key facts:\n\n{start}|Extract the information as JSON: {start}
Extract the key words: {start}
Extract the name, age and city: {start}|Extract the price and the product: {start}
List the people mentioned: {start}|List the places mentioned: {start}
List all animals in this text: {start}
List every person in this text: {start}|List the companies: {start}|List the main events:\n\n{start}
Find the name and the date: {start}|Find the email address: {start}|Find all verbs in: {start}
Find the adjectives: {start}|Which city is mentioned? {start}
Which people are mentioned here? {start}
Who is mentioned? {start}|Who did it? {start}|When did it happen? {start}
Where does this happen? {start}
What is the problem? {start}|What does the customer want? {start}|What time is it? {start}
How much does it cost? {start}|Get the phone number: {start}|Tell me the date and place: {start}
Is this review positive or negative? {start}|Classify this text: {start}
What is the sentiment? {start}
Read the text and answer the question. {start}|Text: {start}|Context: {start}|Passage: {start}
Here is a message: {start}|From this text, list the facts: {start}|Answer from the text: {start}""",
    "write": """Write a|Write a short|Write a story|Write a story about a {noun}|Write a poem
Write a poem about the {noun}|Write an email|Write an email to|Write an email to {first}
Write a letter
Write a letter to|Write an essay|Write a paragraph|Write a paragraph about|Write a review of
Write a speech|Write a dialogue|Write a song|Write a blog post|Write an article|Write a description
Write a description of a {adj} {noun}|Write a product|Write a message|Write a tweet|Write a joke
Write a scene|Write a script|Write about|Write instructions|Write a report|Write a biography
Write a birthday|Write a thank-you|Write an apology|Write an invitation|Write the beginning
Write a haiku|Write a limerick|Write a slogan|Write an advertisement|Draft a|Draft an email|Compose
Compose a|Create a story|Create a character|Create a dialogue|Create a recipe|Create a slogan
Describe a|Describe a {adj} {noun}|Describe the {noun}|Describe your|Imagine a
Imagine you are a {noun}
Imagine that|You are a {noun}|You are a {adj} {noun}|Come up with|Invent a|Tell a story
Continue the story
A story about|A poem about|An email to|A letter from|Make up a|Give me a story|Help me write""",
}
"""First words of requests by kind; {start} is the beginning of a passage (STARTS)."""

VERBS = """sort|read|parse|open|reverse|merge|count|filter|convert|delete|copy|send|download|test
loop
split|join|check|format|validate|search|update|insert|print|draw|cache|log|close|compare|group
remove"""
