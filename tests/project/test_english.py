"""The command that finds prose to mend: the faults it sees, the text it leaves alone, our own."""

from __future__ import annotations

import pathlib
import textwrap

import pytest
from support import english, english_sample

LONG = " ".join(["word"] * (english.WORDS + 1))


def faults_in(tmp_path: pathlib.Path, name: str, text: str) -> list[str]:
    """Return the reasons given for a file with this text, each with its line."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return [f"{fault.line}: {fault.why}" for fault in english.faults(path)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LONG}.", [f"1: {english.WORDS + 1} words"]),
        (f"Short. {LONG.capitalize()}.", [f"1: {english.WORDS + 1} words"]),
        (f"{LONG.removeprefix('word ')}.", []),
        ("What it is.", ["1: opens with 'What'"]),
        ("A start. Of this.", ["1: opens with 'Of'"]),
        ("A start. (That is.)", ["1: opens with 'That'"]),
        ("What is it? How is it done.", []),
        ("Whatsoever. Offer. Thatch.", []),
    ],
)
def test_sentences_of_a_page(tmp_path, text, found):
    assert faults_in(tmp_path, "page.md", text) == found


def test_a_sentence_may_begin_with_code(tmp_path):
    half = " ".join(["word"] * 15)
    assert not faults_in(tmp_path, "page.md", f"It is {half}. `fbuf.add` is {half}.")
    assert not faults_in(tmp_path, "page.md", f"It is `{LONG}`. **Bold** is {half}.")


def test_a_colon_ends_no_sentence(tmp_path):
    half = " ".join(["word"] * 15)
    assert faults_in(tmp_path, "page.md", f"It is so:\n{half}\n{half}.") == ["1: 33 words"]
    assert not faults_in(tmp_path, "page.md", f"It is so: {half}:\n\n- {half}\n- {half}")


def test_lists_tables_and_code_are_left_alone(tmp_path):
    page = f"""
        # What a heading may say {LONG}

        - one
        - two
        - three
          of four {"word " * 10}
        1. five {"word " * 20}
        2. six {"word " * 20}

        | what | {LONG} |

        ```python
        # What {LONG}
        ```

        ~~~
        ```
        What {LONG}
        ~~~

        Text with code:

            What {LONG}

            Of {LONG}

        ![What {LONG}](picture.png)
        <!-- What {LONG} -->
        """
    assert not faults_in(tmp_path, "page.md", page)


def test_an_admonition_and_an_indented_item_are_prose(tmp_path):
    lines = ['!!! note "What it is"', "    What it says.", "", "1.  One.", "", "    Of the item."]
    page = "\n".join(lines)
    found = ["2: opens with 'What'", "6: opens with 'Of'"]
    assert faults_in(tmp_path, "page.md", page) == found


def test_docstrings_and_their_sections(tmp_path):
    module = f'''
        """How a module opens."""

        NUMBER = 1
        """Who has it."""

        def function(one, two):
            """Return a value. How it is made is said here.

                python -m {LONG}

            Args:
                one: What it is.
                two, three: {"word " * 15}
                four (int): {"word " * 15}
                    and goes on. Of five.

            Returns:
                The value: {"word " * 10}

            Raises:
                ValueError: That it raises.

            Examples:
                >>> print("What")
                What {LONG}

            References:
                Of {LONG}
            """
        '''
    assert faults_in(tmp_path, "module.py", module) == [
        "1: opens with 'How'",
        "4: opens with 'Who'",
        "12: opens with 'What'",
        "14: opens with 'Of'",
        "21: opens with 'That'",
    ]


def test_comments(tmp_path):
    module = f"""
        # What a comment says.
        x = 1  # Of the end of a line.
        # {"word " * 20}
        # {"word " * 20}
        #: That is an attribute.

        # {"word " * 20}

        # {"word " * 20}
        """
    found = ["1: opens with 'What'", "2: opens with 'Of'", "3: 44 words"]
    assert sorted(faults_in(tmp_path, "module.py", module)) == found


@pytest.mark.parametrize(
    "message",
    [
        f'raise ValueError("{LONG}")',
        f'raise ValueError("{LONG[:60]}"\n "{LONG[60:]}")',
        f'raise ValueError("{LONG[:60]}" + "{LONG[60:]}")',
        f'raise ValueError(f"{{x}} {LONG[5:]}")',
        f'raise ValueError(x + " {LONG[5:]}")',
        f'message = "{LONG}"\nraise ValueError(message)',
        f'raise ValueError("fbuf.add: {LONG}")',
        f'warnings.warn("{LONG} {{}}".format(x), stacklevel=2)',
    ],
)
def test_a_long_message(tmp_path, message):
    (found,) = faults_in(tmp_path, "module.py", message)
    assert found.endswith("words")


@pytest.mark.parametrize(
    "text",
    [
        f'raise ValueError("{LONG[:60]}; {LONG[60:]}")',
        f'code = """\nfor x in range(3):\n    print("What", {", ".join(["x"] * 40)})\n"""',
        'names = "What Of That"',
        f'table = """\n| What | {LONG} |\n"""',
    ],
)
def test_a_string_that_is_no_long_message(tmp_path, text):
    assert not faults_in(tmp_path, "module.py", text)


def test_a_text_opens_as_a_page_does(tmp_path):
    module = 'print("It was so. What it said is not what it did.")'
    assert faults_in(tmp_path, "module.py", module) == ["1: opens with 'What'"]


def test_figures_are_not_read(tmp_path):
    (tmp_path / "results").mkdir()
    for path in ("page.md", "results/page.md", "notes.txt"):
        (tmp_path / path).write_text("What it is.")
    assert english.files([str(tmp_path)]) == [tmp_path / "page.md"]


def test_all_prose_is_read_once():
    places = [str(english.ROOT / folder) for folder in english.FOLDERS]
    found = [fault for file in english.files(places) for fault in english.faults(file)]
    assert not found, "\n".join(map(str, found))


@pytest.fixture
def strict(tmp_path, monkeypatch):
    """Return a function for the reasons given for a module of `fbuf`, or at another path."""
    monkeypatch.setattr(english, "ROOT", tmp_path)

    def reasons(text: str, path: str = "fbuf/module.py") -> list[str]:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return [fault.why for fault in english.faults(file)]

    return reasons


@pytest.mark.parametrize(
    ("sentence", "phrases"),
    [
        ("Return the slots, none twice.", ["none twice"]),
        ("Return so many rows.", ["so many"]),
        ("Refuse so many values that they fill the memory.", []),
        ("Return the figures, as JSON has them.", ["as X has"]),
        ("Find the rows as the sampler does.", ["as X has"]),
        ("Save a buffer as `fbuf.save` does it.", []),
        ("Wait as long as the thread has work.", []),
        ("Return that of those rows.", ["that of those"]),
        ("Return the rows that a view looks at the flags of.", ["ends in a preposition"]),
        ("The file that rows are read from; a directory.", ["ends in a preposition"]),
        ("Return the rows that it asked for.", []),
        ("Go on, and so on.", []),
    ],
)
def test_phrases_in_place_of_nouns(strict, sentence, phrases):
    assert strict(f'"""{sentence}"""\n') == phrases
    assert strict(f"# {sentence}\n") == phrases
    assert not strict(f'raise ValueError("{sentence}")\n')
    assert not strict(f'"""{sentence}"""\n', "tests/module.py")


@pytest.mark.parametrize("name", sorted(english.NAMES))
def test_an_empty_name_of_a_result_lives_for_few_lines(strict, name):
    module = "def function():\n    {0} = 1\n{1}    return {0}\n"
    lines = "    print()\n" * (english.LINES - 1)
    assert not strict(module.format(name, lines))
    assert strict(module.format(name, lines + "    print()\n")) == [f"{name!r} for a result"]
    assert not strict(module.format("rows", lines * 2))


def test_a_sample_is_that_of_its_seed(monkeypatch, tmp_path):
    (tmp_path / "fbuf").mkdir()
    texts = "".join(
        f'# comment {n}\n\nraise ValueError("one two three four five six {n}")\n"""D{n}."""\n'
        for n in range(40)
    )
    (tmp_path / "fbuf" / "module.py").write_text(texts)
    monkeypatch.setattr(english, "ROOT", tmp_path)
    drawn = list(english_sample.sample(1))
    assert drawn == list(english_sample.sample(1)) != list(english_sample.sample(2))
    kinds = [kind for kind, _, _ in drawn]
    assert {kind: kinds.count(kind) for kind in english_sample.SIZES} == english_sample.SIZES
    assert len(set(drawn)) == len(drawn)
    lines = texts.splitlines()
    for kind, place, text in drawn:
        line = lines[int(place.rpartition(":")[2]) - 1]
        mark = {"comment": "# ", "error": "raise ValueError", "docstring": '"""'}[kind]
        assert line.startswith(mark)
        assert text in line
