"""`isonomy-company few-shot-plan`: agree on a few-shot run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit, say
from isonomy.common.base.private_files import write_whole
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.keys.party import Card
from isonomy.company.cli.options import HOME, AboutOption, HomeFolder, about_fields
from isonomy.company.federation.home import Home

MAX_SETTINGS_BYTES = 1 << 16


def few_shot_plan(
    regulator: Annotated[Path, typer.Option(help="The regulator's card.json.")],
    relay: Annotated[str, typer.Option(help="The server's name, as in its certificate.")],
    tasks: Annotated[str, typer.Option(help="The name of the regulator's tasks.")],
    samples: Annotated[int, typer.Option(help="How many samples those tasks have.")],
    settings: Annotated[
        Path, typer.Option(help="JSON with settings that differ from the defaults.")
    ],
    name: Annotated[str, typer.Option(help="A title for people. Default: the file's name.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("few-shot.json"),
    home: HomeFolder = HOME,
    about: AboutOption = None,
) -> None:
    """Write a few-shot plan for both owners to approve: both meta-train one model on their tasks.

    The settings are those of a rehearsal (docs/few-shot.md), as a JSON object. Rates, norms, noise
    and epsilon are in millionths. Example:
    `isonomy-company few-shot-plan --regulator card.json --relay server.example
    --tasks digits --samples 900 --settings settings.json`
    """
    from isonomy.common.few_shot.learning.models import (  # torch loads only here
        Network,
        fingerprint,
    )

    run_settings = read_settings(settings)
    plan = FewShotPlan.of(
        {
            "name": name or output.stem,
            "companies": [Home(home).keys().card()],
            "regulator": Card.load(regulator),
            "relay_name": relay,
            "parameters": DEFAULT_PARAMETERS.name,
            "pool": tasks,
            "samples": samples,
            "settings": run_settings,
            "fingerprint": fingerprint(run_settings).hex(),
            "size": Network.of(run_settings).size,
            "about": about_fields(about),
        }
    )
    plan.save(output)
    public = output.with_suffix(".public.json")
    write_whole(public, plan.public().to_json())
    say(plan.describe())
    facts = {"plan": output, "public": public, "hash": plan.hash.hex()}
    emit(facts, f"Wrote {output} and {public}.\nhash: {plan.hash.hex()}")


def read_settings(path: Path) -> FewShotSettings:
    """Settings from a JSON object; fields that are left out have their defaults."""
    try:
        with path.open("rb") as file:
            return FewShotSettings.model_validate_json(file.read(MAX_SETTINGS_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read the settings {path}: {error.strerror}") from None
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()
        )
        raise ConfigError(f"{path}: {reasons}") from None
