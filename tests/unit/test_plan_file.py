"""What of a plan is shown, and to whom its file is open."""

from __future__ import annotations

import os
import stat

import pytest

from humigence_supervise.durable import write_json
from humigence_supervise.plan_file import REDACTED, public_argv, public_value

SECRETS = [
    "PGPASSWORD",
    "MYSQL_PWD",
    "SSHPASS",
    "GITHUB_PAT",
    "NGC-API-KEY",
    "OPENAI_KEYS",
    "SECRETS",
    "MYTOKEN",
    "DATABASE_DSN",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "WANDB_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "BASIC_AUTH",
    "PROXY_AUTHORIZATION",
    "SSH_PASSPHRASE",
    "APIKEY",
    "OPENAI_APIKEY",
    "PRIVATE_KEY",
    "--hf-token",
    "auth.key",
]
PLAIN = [
    "TOKENIZERS_PARALLELISM",
    "PATH",
    "PYTHONPATH",
    "PWD",
    "OLDPWD",
    "HUMIGENCE_RUN_ID",
    "NCCL_DEBUG",
    "PYTHONHASHSEED",
    "KEYBOARD",
    "MONKEY",
    "PATIENCE",
    "GIT_AUTHOR_NAME",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "--tokenizer",
]


@pytest.mark.parametrize("name", SECRETS)
def test_the_value_of_a_secret_name_is_hidden(name):
    """Whatever joins its words, and in either case."""
    assert public_value(name, "v") == REDACTED
    assert public_value(name.lower(), "v") == REDACTED


@pytest.mark.parametrize("name", PLAIN)
def test_a_name_that_only_looks_a_little_like_a_secret_is_shown(name):
    """A plan that hides everything explains nothing."""
    assert public_value(name, "v") == "v"


def test_a_number_of_tokens_is_shown():
    """How many is no secret; which ones are."""
    assert public_value("--max_new_tokens", "512") == "512"
    assert public_value("HF_TOKENS", "hf_abc,hf_def") == REDACTED


@pytest.mark.parametrize("who", ["me:pw", "hf_abc", "me:p@ss"])
def test_the_credentials_in_a_url_are_hidden(who):
    """User and password, or a user alone, which is where tokens stand."""
    assert public_value("INDEX", f"https://{who}@host/x") == f"https://{REDACTED}@host/x"
    assert public_value("INDEX", "https://host/a@b") == "https://host/a@b"


def test_the_secrets_of_a_command_line_are_hidden_and_the_rest_is_not():
    """Values beside their option, after an equals sign, and in a NAME=value word."""
    argv = [
        "python",
        "-u",
        "train.py",
        "--lr",
        "0.1",
        "--hf_token",
        "hf_abc",
        "--api-key=sk-1",
        "--epochs=3",
        "X_TOKEN=t",
        "--index",
        "https://u@host/s",
        "--secrets",
        "a",
        "b",
        "--config",
        "c.json",
        "+auth.password=p",
        "--key",
        "k=v",
        "-x",
        "--env=A_TOKEN=t",
        "--url",
        "https://h/?token=t",
    ]
    assert public_argv(argv) == tuple(
        f"python -u train.py --lr 0.1 --hf_token {REDACTED} --api-key={REDACTED} --epochs=3 "
        f"X_TOKEN={REDACTED} --index https://{REDACTED}@host/s --secrets {REDACTED} {REDACTED} "
        f"--config c.json +auth.password={REDACTED} --key {REDACTED} -x "
        f"--env=A_TOKEN={REDACTED} --url https://h/?token={REDACTED}".split()
    )


def test_a_written_plan_is_for_its_owner_alone(tmp_path):
    """Also with an open umask, and where an older half-written file was open to all."""
    path = tmp_path / "plan.json"
    before = os.umask(0)
    try:
        write_json(path, {})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (tmp_path / "plan.json.part").touch(mode=0o644)
        write_json(path, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
