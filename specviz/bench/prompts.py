"""The prompts that are measured, written for this: questions, prose, code, and texts that repeat themselves.

Owns: the prompts. Must not know anything else.
"""

PROMPTS = (
    "Explain in a few sentences why bread dough rises and what happens if you forget the salt.",
    "Here is a function:\n\ndef total(prices):\n    result = 0\n    for price in prices:\n"
    "        result = result + price\n    return result\n\n"
    "Rewrite the function so that it skips prices below zero, and keep its style.",
    "Write the opening paragraph of a story about a cartographer who finds a street that is on no map.",
    "Notes: the bridge on Mill Lane closes on Monday. The bus takes Orchard Road instead. The bridge on Mill Lane "
    "opens again on Friday. The bus then takes Mill Lane again.\n\nRepeat the notes as a numbered list.",
    "List the planets of the solar system in order, one per line, each with one fact.",
    "My neighbour plays the trumpet every evening. Write a short, polite letter that asks for quiet after nine.",
)
