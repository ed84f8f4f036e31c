"""Published benchmark text back to ordinary text, held to what MDLM's functions return.

WikiText is read line by line, and the sentences of PTB and LM1B without white space at their ends, as there.
"""

import pytest

from atat_zoo.registry import Zoo

FOUND = [
    (
        "wikitext",
        ' = Title = \n \n The game \'s 1 @,@ 000 @-@ year war ( also known as " it " ) was , lost ; see [ 1 ] . \n',
        ' = Title =\n\n The game\'s 1,000-year war (also known as "it") was, lost; see [1].\n',
    ),
    (
        "wikitext",
        " = = = Early years = = = \n 5 ° N of the soldiers ' camp : N @.@ 5 ! \n",
        " === Early years ===\n 5°N of the soldiers' camp: N.5!\n",
    ),
    (
        "ptb",
        " mr. <unk> does n't expect the companies ' N N to rise \n ",
        "mr. ? doesn't expect the companies' 1 1 to rise",
    ),
    ("ptb", " it 's N N N and $ N a share in new york\\/london ", "it's 1 1 1 and $1 a share in new york/london"),
    (
        "lm1b",
        'The U.S. wasn \'t sure , he said : " it is late " ( again ) .',
        'The U.S. wasn\'t sure, he said: "it is late" (again) .',
    ),
    (
        "lm1b",
        "See http : / / a.org , or pay $ 5 and / or £ 6 ! Really ?",
        "See http://a.org, or pay $5 and/or £6! Really?",
    ),
    ("lambada", " “Yes,” said the ship. \n He left “now”", '\n"Yes," said the ship. \n He left "now"'),
    (
        "scientific_papers",
        "the value of @xmath0 is ( see fig . 1 ) , @-@ not 's [ 2 ] ; it isn 't \" known \" . \n we find n @.@ 5 $ 5 ?",
        "the value of @xmath0 is (see fig. 1) ,-not's [2]; it isn't \"known\".\nwe find n.5 $5?",
    ),
    ("none", " as @-@ it is ", " as @-@ it is "),
]


@pytest.mark.parametrize(("name", "text", "expected"), FOUND)
def test_text_is_that_of_the_literature(name, text, expected):
    assert Zoo.load().spec("detokenizer", name)(text) == expected
