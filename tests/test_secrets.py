"""A key, token or password that stands in a command or in a variable is never shown; the rest of the command is."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnfit.deploy.command import restored, secrets_of
from attnfit.engines.vllm.flags import known_releases, load_table
from attnfit.hazards import catalogue
from attnfit.inputs.command import parse_command
from attnfit.inputs.secrets import clean, hide, is_secret, masked
from attnfit.inputs.secrets import line as one_line

WORD = "Zx9SECRETkq"


@pytest.mark.parametrize("flag", ["--api-key", "--hf-token"])
def test_every_beginning_of_a_secret_flag_is_one_because_argparse_takes_it(flag: str) -> None:
    for end in range(3, len(flag) + 1):
        for words in ([flag[:end], WORD], [f"{flag[:end]}={WORD}"]):
            line = ["vllm", "serve", "m", *words, "--dtype", "half"]
            for shown in (
                " ".join(hide(line)),
                parse_command(line).display(),
                parse_command(shlex.join(line)).display(),
            ):
                assert WORD not in shown, words
                assert shown.endswith("--dtype half")
            assert WORD not in clean(f"refused: {WORD}", line)


@pytest.mark.parametrize("flag", ["--api-kee", "--api-kye", "--apikey", "--api_key", "--hf-tokn", "--hftoken"])
def test_a_misspelt_secret_flag_is_one_too(flag: str) -> None:
    assert WORD not in " ".join(hide(["vllm", "serve", "m", flag, WORD]))


def test_of_the_engines_own_flags_only_those_that_hold_a_secret_are_hidden() -> None:
    found = {option for release in known_releases() for flag in load_table(release).flags for option in flag.options}
    credentials = {"--allow-credentials", "--no-allow-credentials"}  # switches
    assert {option for option in found if is_secret(option)} - credentials == {"--api-key", "--hf-token"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f"echo {WORD} | huggingface-cli login --token {WORD} && vllm serve m --dtype half",
            "huggingface-cli login --token $TOKEN && vllm serve m --dtype half",
        ),
        (f"wrapper --token {WORD} vllm serve m", "wrapper --token $TOKEN vllm serve m"),
        (f"vllm serve m --api-key {WORD} {WORD} > log", "vllm serve m --api-key $API_KEY $API_KEY > log"),
        (f"gateway --api-key {WORD} vllm serve m", "gateway --api-key $API_KEY vllm serve m"),
    ],
)
def test_only_the_secret_word_is_hidden_and_the_command_stays_usable(text: str, shown: str) -> None:
    assert hide([text])[0].endswith(shown)
    if "|" not in text and ">" not in text:
        assert " ".join(hide(shlex.split(text))) == shown


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "A_SECRET"])
@pytest.mark.parametrize(
    "front",
    [
        [],
        ["bash", "-c"],
        ["sh", "-ec"],
        ["docker", "exec", "box", "bash", "-lc"],
        ["kubectl", "exec", "pod", "--", "/bin/bash", "-c"],
        ["docker", "run", "--entrypoint", "bash", "vllm/vllm-openai:v0.16.0", "-c"],
        ["docker", "run", "--entrypoint=bash", "vllm/vllm-openai:v0.16.0", "-c"],
        ["ssh", "box"],
    ],
)
@pytest.mark.parametrize(
    "text", ["{} vllm serve m --dtype half", "{}; vllm serve m", "{} B=2 sudo vllm serve m && echo"]
)
def test_of_a_shell_string_that_begins_with_a_secret_only_the_value_is_hidden(
    name: str, front: list[str], text: str
) -> None:
    for value in (WORD, f"'{WORD} two'", f'"{WORD}"'):
        words = [*front, text.format(f"{name}={value}")]
        shown = text.format(f"{name}=${name}")
        assert hide(words) == [*front, shown]
        printed = one_line(words)
        assert printed == shown if not front else shlex.split(printed) == [*front, shown]


def test_a_shell_reads_what_stands_behind_its_c_whatever_it_starts() -> None:
    assert hide(["bash", "-c", f"A_SECRET={WORD} ./serve.sh m"])[-1] == "A_SECRET=$A_SECRET ./serve.sh m"


@pytest.mark.parametrize(
    "words",
    [
        ["docker", "run", "-e", f"A_SECRET={WORD} {WORD}", "image"],
        [f"A_SECRET=two {WORD}", "vllm", "serve", "m"],
        ["vllm", "serve", "m", f"--env=A_SECRET=two {WORD}"],
        [f"A_SECRET=two {WORD}"],
        ["bash", "-c", f"A_SECRET='two {WORD}' vllm serve m"],
        ["bash", "-c", f'A_SECRET="two {WORD}'],  # no shell can read it
    ],
)
def test_a_secret_that_holds_blanks_is_hidden_whole(words: list[str]) -> None:
    assert WORD not in " ".join(hide(words))
    assert WORD not in one_line(words)


def test_a_string_for_a_shell_is_quoted_whole_and_an_assignment_in_front_of_a_command_is_not() -> None:
    assert one_line(["sh", "-c", "A=1 sudo vllm serve m"]) == "sh -c 'A=1 sudo vllm serve m'"
    assert one_line(["A=x y", "vllm", "serve", "m"]) == "A='x y' vllm serve m"


@pytest.mark.parametrize(
    ("word", "printed"),
    [
        (f"S3_KEY={WORD}", "S3_KEY=$S3_KEY"),
        (f"HTTPS_PROXY=http://u:{WORD}@h:1", 'HTTPS_PROXY="http://$PASSWORD@h:1"'),
        (f"https://{WORD}@h:1/x?a=1&b=2", '"https://$PASSWORD@h:1/x?a=1&b=2"'),
        ("X=hf_abcdefghijklmnopqrst/m", 'X="$TOKEN/m"'),
        (f"https://{WORD}@h/$home", "'https://$PASSWORD@h/$home'"),  # the user's own $ is none of ours
        ("X=$HOME and more", "'X=$HOME and more'"),
    ],
)
def test_what_stands_for_a_secret_is_filled_in_by_the_shell_it_is_pasted_into(word: str, printed: str) -> None:
    assert one_line(["docker", "run", "-e", word]) == f"docker run -e {printed}"


@pytest.mark.parametrize("url", ["http://u:SECRET@localhost:1", "https://SECRET@hub.example/x", "http://:SECRET@h"])
def test_no_password_of_an_address_is_printed_wherever_it_came_from(url: str) -> None:
    said = clean(f"a/b is no path here, and {url} cannot be reached", [])
    assert "SECRET" not in said
    assert said.endswith(" cannot be reached")


HOLDS = (
    "password", "passwd", "pass", "pwd", "pw", "passphrase", "passcode", "token", "secret", "cookie",
    "api_key", "credential",
)  # fmt: skip
BEFORE = ("", "db", "myapp", "ldap_bind", "user", "auth")
SPELT = (
    str,
    str.upper,
    lambda name: name.replace("_", "-"),
    lambda name: name.title().replace("_", ""),
    lambda name: name[:1] + name.title().replace("_", "")[1:],
)
SAID = (
    "{}={}", "{}: {}", "{} = {}", "connect with {}={} now", "{}='{}'", '{{"{}": "{}", "port": 5}}', "{{'{}': '{}'}}",
    "Settings({}='{}', tokenizer='t')", "docker run -e {}={} image", "export {}={}; vllm serve m", "-H 'X-{}: {}'",
)  # fmt: skip
VALUE = st.text(st.sampled_from("abcXYZ0189&!@#%^*_+-./?~"), min_size=6, max_size=30).filter(
    lambda v: any(c.isalpha() for c in v) and any(c.isdigit() for c in v) and v[0].isalnum()
)


def _held_names() -> st.SearchStrategy[str]:
    return st.builds(
        lambda before, name, spelt: spelt(f"{before}_{name}".strip("_")),
        *(st.sampled_from(each) for each in (BEFORE, HOLDS, SPELT)),
    ).filter(lambda name: name != "PWD")  # where a shell stands


@settings(max_examples=400, deadline=None)
@given(_held_names(), st.sampled_from(SAID), VALUE)
@example("password", "{}={}", "Tr0ub4dor&3")
@example("PGPASS", "docker run -e {}={} image", "Zx9SECRETkq")
def test_what_stands_behind_the_name_of_a_secret_is_hidden_up_to_its_end(name: str, said: str, value: str) -> None:
    shown = masked(said.format(name, value))
    assert shown == said.format(name, "$HIDDEN") or shown == said.format(name, "$TOKEN")


@settings(max_examples=200, deadline=None)
@given(_held_names(), VALUE)
def test_in_a_command_flags_and_variables_of_such_names_are_hidden(name: str, value: str) -> None:
    flag = "--" + name.replace("_", "-")
    for words in ([flag, value], [f"{flag}={value}"], ["docker", "run", "-e", f"{name.replace('-', '_')}={value}"]):
        assert value not in " ".join(hide(["x", *words]))
    assert value not in " ".join(hide(["sshpass", "-p", value, "ssh", "h"]))
    assert hide(["/usr/bin/sshpass", f"-p{value}", "ssh", "h"]) == ["/usr/bin/sshpass", "-p$SSHPASS", "ssh", "h"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Cookie: session=Zx9; theme=dark", "Cookie: $HIDDEN"),
        ("curl -H 'Cookie: a=Zx9; b=c' http://h/x", "curl -H 'Cookie: $HIDDEN' http://h/x"),
        ("sshpass -p Zx9&3 ssh h", "sshpass -p $HIDDEN ssh h"),
        ("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG", "$TOKEN:$HIDDEN"),
        ("http://h/x?token=Zx9abc&page=2", "http://h/x?token=$HIDDEN&page=2"),
        ('password="two words \\" and more" port=5', 'password="$HIDDEN" port=5'),
    ],
)
def test_a_secret_ends_where_its_form_says(line: str, shown: str) -> None:
    assert masked(line) == shown


KEPT = (
    "max_tokens=100", "--max-num-batched-tokens 8192", "tokenizer: org/m", "KV tokens: 1,234", "key_cache=block_0a",
    "num_key_value_heads=8", "eos_token='</s2>'", "pad_token: <|end0|>", "cache_key=4f3a9b", "bypass=l2cache",
    "forward_pass=warm1", "monkey: m1", "MONKEY=m1", "HOTKEY=f12", "TURKEY=eu1", "ROWKEY=a1",
    "PWD=/srv/m1", "allow_credentials=True", "token=None", "compass: n1",
    "secretary: s1",
    "tokens_per_second=1.5", "KeyError: 'model.layers.0'", "key: model.layers.0.weight", "tokenizer_mode=auto2",
    "skip_tokenizer_init=False", "passed: 3a", "keyfile=k1.pem", "pass_config={'fuse_norm_quant': True}",
    "api_key=None",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(KEPT), min_size=1, max_size=5), st.sampled_from((", ", " ", "; ")))
def test_what_only_sounds_like_a_secret_stays(parts: list[str], between: str) -> None:
    line = between.join(parts)
    assert masked(line) == line
    words = ["vllm", "serve", "m", *(word for part in parts if "None" not in part for word in part.split())]
    assert hide(words) == words


PLAIN = "plainvalue123"
THROUGH_A_VARIABLE = (
    ["bash", "-c", f"export LLM={PLAIN}; exec vllm serve m --port 8001 --api-key $LLM"],
    ["bash", "-c", f"LLM='{PLAIN}' && vllm serve m --api-key=${{LLM}}"],
    [f"LLM={PLAIN} vllm serve m --api-key $LLM"],
    [f"LLM={PLAIN}", "vllm", "serve", "m", "--api-key", PLAIN],
    ["env", f"LLM={PLAIN}", "bash", "-c", "exec vllm serve m --api-key $LLM"],
    ["docker", "run", "-e", f"LLM={PLAIN}", "vllm/vllm-openai:v0.16.0", "--model", "m", "--api-key", PLAIN],
    ["bash", "-c", f"echo {PLAIN} > /f; vllm serve m --api-key {PLAIN}"],
)


@pytest.mark.parametrize("words", THROUGH_A_VARIABLE)
def test_what_a_secret_flag_ends_up_with_is_hidden_wherever_it_stands(words: list[str]) -> None:
    assert PLAIN not in one_line(words)
    assert restored(hide(words), words) == tuple(words)
    assert PLAIN in secrets_of(words, {})
    assert PLAIN not in clean(f"connect with {PLAIN}", ["check", "--fix", "--", *words])


def test_a_key_that_is_an_ordinary_word_hides_no_program_and_one_from_around_is_known() -> None:
    words = ["LLM=vllm", "vllm", "serve", "m", "--api-key", "vllm"]
    assert hide(words) == ["LLM=$API_KEY", *words[1:5], "$API_KEY"]
    assert PLAIN in secrets_of(["bash", "-c", "exec vllm serve m --api-key $LLM"], {"LLM": PLAIN})


@pytest.mark.parametrize("name", ["MYKEY", "LLMKEY", "OUR_LLMKEY"])
def test_a_variable_whose_name_ends_in_key_holds_one(name: str) -> None:
    assert hide([f"{name}={PLAIN}", "vllm", "serve", "m"])[0] == f"{name}=${name}"


def test_no_word_of_the_catalogue_is_taken_for_a_secret() -> None:
    for record in catalogue().records:
        texts = [record.title, record.why, *(way.text for way in record.remedies)]
        for text in texts:
            assert masked(text) == text
