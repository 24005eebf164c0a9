"""People: a file with preview and spellings, what it would change, enrolling, and forgetting.

An upload lies in a private folder until it is enrolled, discarded or replaced, its session was idle
for too long, or the console ends. The page never shows an id. Group sizes are shown to the officer
alone, after the passphrase, and stand in no address.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from isonomy.common.base.errors import ConfigError
from isonomy.common.people.cohort import written_as
from isonomy.regulator.config.config import DEFAULT_COHORT, RegulatorConfig
from isonomy.regulator.console.access import Upload
from isonomy.regulator.console.call import Call, act, page
from isonomy.regulator.console.render import TEXTS
from isonomy.regulator.plans.plan_files import find_plan
from isonomy.regulator.serving.status import read_status
from isonomy.regulator.upkeep.forget import forget_cohort, forget_run, unfinished
from isonomy.regulator.upkeep.people import EnrolmentOrder, enroll_people, rehearse_enrolment
from isonomy.regulator.vault.sealed_file import shred
from isonomy.regulator.vault.tables import Problems, column_names, read_rows

UPLOADS = ("/people",)
MAX_SPELLINGS, MAX_COLUMNS = 40, 200
DELIMITERS = {",": ",", ";": ";", "tab": "\t"}


def people(call: Call) -> Response:
    """What is enrolled, the form for a file, and forgetting."""
    config = call.config
    status = read_status(config)
    plans = [plan for plan in status["plans"] if plan["is_open"]]
    return call.show(
        "people.html.j2", status=status, groups=config.groups, plans=plans,
        unfinished=unfinished(config), upload=call.session.upload,
    )  # fmt: skip


def receive(call: Call) -> Response:
    """Take a file in, to be looked at."""
    files = call.form.files
    if len(files) != 1:
        raise ConfigError(TEXTS["people"]["one_file"])
    ((name, path),) = files.items()
    delimiter = call.form["delimiter"] or ","
    if len(column_names(path, DELIMITERS.get(delimiter, ","))) > MAX_COLUMNS:
        raise ConfigError(TEXTS["people"]["wide"].format(most=MAX_COLUMNS))
    drop_upload(call)
    files.clear()  # out of the form, so that it is not discarded with it
    call.session.upload = Upload(path, name, {"delimiter": [delimiter]})
    return call.go("/people/file")


def file_page(call: Call) -> Response:
    """The file's columns and spellings, to be matched with the declared groups."""
    upload = call.session.upload
    if upload is None:
        return call.go("/people", TEXTS["people"]["no_file"], "warn")
    if call.request.method == "POST":
        upload.settings.update(call.form.fields)
    return call.show("people_file.html.j2", result=None, **_preview(call.config, upload))


def match(call: Call) -> Response:
    """Take over which columns are which."""
    upload = _upload(call)
    delimiter = upload.settings.get("delimiter", [","])
    upload.settings = {"delimiter": delimiter, **call.form.fields}
    return call.go("/people/file#spellings")


def check(call: Call) -> Response:
    """Show what enrolling would change."""
    upload, config = _upload(call), call.config
    upload.settings.update(call.form.fields)
    result = rehearse_enrolment(config, call.actor.open_vault(), _order(upload))
    sizes = {name: result.table.sizes(name) for name in result.table.groups}
    return call.show(
        "people_file.html.j2", result=result, sizes=sizes,
        smallest=config.policy.smallest_group, **_preview(config, upload),
    )  # fmt: skip


def enroll(call: Call) -> Response:
    """Enroll the file's people, and destroy the file."""
    upload = _upload(call)
    upload.settings.update(call.form.fields)
    done = enroll_people(call.config, call.actor.open_vault(), _order(upload))
    drop_upload(call)
    counts, texts = done.counts, TEXTS["people"]
    text = texts["enrolled"].format(
        added=counts.added, replaced=counts.replaced, unchanged=counts.unchanged, all=counts.people
    )
    for warning in counts.damaged.describe():
        call.session.notes.append(("warn", f"{warning}."))
    return call.go("/people", text + (" " + texts["served"] if done.old_values_served else ""))


def discard(call: Call) -> Response:
    """Destroy the upload."""
    drop_upload(call)
    return call.go("/people", TEXTS["people"]["discarded"])


def forget(call: Call) -> Response:
    """Forget a run or a cohort; its name is typed once more."""
    config, form, texts = call.config, call.form, TEXTS["people"]
    what = form["what"].strip()
    if not what or form["again"].strip() != what:
        raise ConfigError(texts["type_again"])
    plan = find_plan(config, what)
    if plan is not None:
        done = forget_run(config, plan)
    else:
        done = forget_cohort(config, what, call.actor.open_vault())
    text = texts["forgotten"].format(what=done.forgotten, people=done.people, record=done.record)
    if done.backups:
        text += " " + texts["backups"].format(backups=", ".join(done.backups))
    return call.go("/people", text)


def drop_upload(call: Call) -> None:
    """Destroy the session's upload, if there is one."""
    upload, call.session.upload = call.session.upload, None
    if upload is not None:
        shred(upload.path)


def _upload(call: Call) -> Upload:
    if call.session.upload is None:
        raise ConfigError(TEXTS["people"]["no_file"])
    return call.session.upload


def _preview(config: RegulatorConfig, upload: Upload) -> dict[str, Any]:
    """Return columns, chosen ones, and how the file spells the groups; none of the ids."""
    settings = upload.settings
    delimiter = DELIMITERS.get(settings.get("delimiter", [","])[0], ",")
    columns = column_names(upload.path, delimiter)
    attributes = [name for name in settings.get("attribute", []) if name in columns]
    if "attribute" not in settings:
        attributes = [name for name in columns if name in config.groups]
    id_column = settings.get("id", [""])[0]
    if id_column not in columns:
        id_column = next((name for name in columns if name not in attributes), "")
    spellings: dict[str, dict[str, str]] = {}
    lines = 0
    if id_column and attributes and id_column not in attributes:
        rows = read_rows(upload.path, id_column, attributes, Problems(upload.path), delimiter)
        seen: list[set[str]] = [set() for _ in attributes]
        for row in rows:
            lines += 1
            for values, value in zip(seen, row.values, strict=True):
                if value is not None and len(values) <= MAX_SPELLINGS:
                    values.add(value)
        for name, values in zip(attributes, seen, strict=True):
            spellings[name] = _open_spellings(config, upload, name, values)
    return {
        "upload": upload, "columns": columns, "attributes": attributes, "id_column": id_column,
        "spellings": spellings, "lines": lines, "groups": config.groups,
        "cohort": settings.get("cohort", [DEFAULT_COHORT])[0],
        "mode": settings.get("mode", ["new"])[0],
        "undeclared": [name for name in attributes if name not in config.groups],
        "can_go_on": bool(spellings) and set(attributes) <= set(config.groups),
    }  # fmt: skip


def _open_spellings(
    config: RegulatorConfig, upload: Upload, name: str, values: set[str]
) -> dict[str, str]:
    """Return the values that are no declared group, each with the group that was chosen for it."""
    known = {*config.groups.get(name, ()), *map(written_as, config.groups.get(name, ()))}
    unknown = {value.casefold() for value in config.vault.unknown_values}
    strange = sorted(value for value in values - known if value.casefold() not in unknown)
    chosen = dict(text.split("=", 1) for text in _chosen(upload) if "=" in text)
    return {value: chosen.get(value, "") for value in strange[:MAX_SPELLINGS]}


def _chosen(upload: Upload) -> list[str]:
    """Return the spellings in the form that the command line takes: VALUE=GROUP."""
    values, groups = upload.settings.get("value", []), upload.settings.get("group", [])
    return [f"{value}={group}" for value, group in zip(values, groups, strict=False) if group]


def _order(upload: Upload) -> EnrolmentOrder:
    settings = upload.settings
    mode = settings.get("mode", ["new"])[0]
    return EnrolmentOrder(
        upload.path,
        settings.get("id", [""])[0],
        settings.get("attribute", []),
        spellings=_chosen(upload),
        cohort=settings.get("cohort", [DEFAULT_COHORT])[0] or DEFAULT_COHORT,
        update=mode in ("update", "replace"),
        replace=mode == "replace",
        delimiter=DELIMITERS.get(settings.get("delimiter", [","])[0], ","),
    )


ROUTES = [
    Route("/people", page(people)),
    Route("/people", act(receive, people, proof=False), methods=["POST"]),
    Route("/people/file", page(file_page)),
    Route("/people/match", act(match, file_page, proof=False), methods=["POST"]),
    Route("/people/check", act(check, file_page), methods=["POST"]),
    Route("/people/enroll", act(enroll, file_page), methods=["POST"]),
    Route("/people/discard", act(discard, people, proof=False), methods=["POST"]),
    Route("/people/forget", act(forget, people), methods=["POST"]),
]
