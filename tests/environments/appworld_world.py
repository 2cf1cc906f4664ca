"""Writes a small self-made AppWorld data root, with the installed engine's own models. Every word in it is ours.

    <interpreter with appworld> appworld_world.py ROOT

One person with an account of Simple Note that holds seven notes; two kinds of tasks, one that asks for a change and
one that asks a question; data sets train (difficulties 1, 2, 3) and dev. Made in two processes, since the engine
keeps one open database per path.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PERSON = {"first_name": "Ada", "last_name": "Field", "email": "ada.field@example.com", "phone_number": "5550101234"}
PASSWORD = "moss-and-fern"
NOTES = ["Groceries", "Garden", "Books to read", "Gifts", "Recipes", "Packing list", "Ideas"]
CHANGE = "Create a note titled 'Hello' with the content 'World' in my Simple Note account."
QUESTION = "How many notes are in my Simple Note account?"
TASKS = [
    ("note01_1", "train", 1, CHANGE),
    ("note01_2", "train", 2, CHANGE),
    ("count2_1", "train", 1, QUESTION),
    ("count2_2", "train", 2, QUESTION),
    ("note03_1", "train", 3, CHANGE),
    ("note04_1", "dev", 1, CHANGE),
    ("count5_1", "dev", 2, QUESTION),
    ("count5_2", "dev", 3, QUESTION),
]
ANSWER_TEST = "assert answers match."
CHANGE_TEST = "assert the wanted note and nothing else was added."
NO_CHANGE_TEST = "assert no note was changed."
EVALUATION = {
    CHANGE: f'''
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("{ANSWER_TEST}"):
        test.answer(models.end.supervisor.Task.first().answer and None, ground_truth_answer)
    with test("{CHANGE_TEST}"):
        added, updated, removed = models.changed_records("simple_note.Note")
        test.case(len(added), "==", 1)
        test.case(added[0].title, "==", public_data.title)
        test.case(added[0].content, "==", public_data.content)
''',
    QUESTION: f'''
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("{ANSWER_TEST}"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)
    with test("{NO_CHANGE_TEST}"):
        added, updated, removed = models.changed_records("simple_note.Note")
        test.case(len(added) + len(updated) + len(removed), "==", 0)
''',
}
TESTS = {
    CHANGE: [
        {"requirement": ANSWER_TEST, "label": "no_op_pass"},
        {"requirement": CHANGE_TEST, "label": "no_op_fail"},
    ],
    QUESTION: [
        {"requirement": ANSWER_TEST, "label": "no_op_fail"},
        {"requirement": NO_CHANGE_TEST, "label": "no_op_pass"},
    ],
}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def write_base(root: Path) -> None:
    """The databases that all tasks share, and the documentation of the apps."""
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING

    base = root / "data" / "base_dbs"
    base.mkdir(parents=True)
    models = ModelCollection.load(
        to_db_home_path=":memory:base",
        from_db_home_path=str(base),
        force_empty_apps=get_all_apps(),
        load_apps=[],
        create_db=True,
        skip_mandatory_apps=True,
    )
    models.admin.MainUser(**PERSON, birthday="1990-01-01").save()
    names = {name: PERSON[name] for name in ("first_name", "last_name", "email")}
    user = models.simple_note.User(**names, password=PASSWORD, verified=True)
    user.save()
    for title in NOTES:
        models.simple_note.Note(title=title, content=f"about {title.lower()}", user_id=user.id).save()
    documents = ApiDocCollection.build(load_apps=("simple_note", "supervisor"))
    for app, by_name in documents.items():
        marked = {api: {**document, "canary_string": CANARY_STRING} for api, document in by_name.items()}
        write(root / "data" / "api_docs" / "standard" / f"{app}.json", marked)
        for document in by_name.values():
            fields = {name: value for name, value in document.items() if name not in ("app_name", "canary_string")}
            models.api_docs.ApiDoc(app_name_=app, **fields).save()
    for app in set(get_all_apps(skip_admin=True)) - set(documents):
        write(root / "data" / "api_docs" / "standard" / f"{app}.json", {})
    models.save(str(base), format="full", app_names=list(get_all_apps()), delete_if_exists=True)


def write_tasks(root: Path) -> None:
    """Each task's changes to the base databases, its specification and its ground truth."""
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import CachedDBHandler
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING, DB_VERSION

    apps = list(get_all_apps())
    for minute, (task_id, dataset, difficulty, instruction) in enumerate(TASKS):
        folder = root / "data" / "tasks" / task_id
        models = ModelCollection.load(
            to_db_home_path=f":memory:task_input-{task_id}",
            from_db_home_path=str(root / "data" / "base_dbs"),
            load_apps=apps,
        )
        supervisor = models.supervisor.Supervisor(**PERSON, birthday="1990-01-01")
        supervisor.save()
        models.supervisor.AccountPassword(
            supervisor_id=supervisor.id, account_name="simple_note", password=PASSWORD
        ).save()
        models.supervisor.Task(supervisor_id=supervisor.id, instruction=instruction).save()
        folder.mkdir(parents=True)
        models.save(str(folder / "dbs"), format="changes", app_names=apps, delete_if_exists=True)
        specification = {
            "instruction": instruction,
            "supervisor": PERSON,
            "datetime": f"2023-05-18T12:{minute:02d}:00",  # no two tasks are equal
            "db_version": DB_VERSION,
            "canary_string": CANARY_STRING,
        }
        write(folder / "specs.json", specification)
        truth = folder / "ground_truth"
        metadata = {"mode": "minimal", "difficulty": difficulty, "num_apps": 1, "num_apis": 3}
        metadata |= {"num_api_calls": 4, "num_solution_code_lines": 6}
        write(truth / "metadata.json", metadata)
        write(truth / "public_data.json", {"title": "Hello", "content": "World"})
        write(truth / "private_data.json", {})
        write(truth / "answer.json", str(len(NOTES)) if instruction == QUESTION else "null")
        write(truth / "test_data.json", TESTS[instruction])
        write(truth / "evaluation.py", EVALUATION[instruction])
        listing = root / "data" / "datasets" / f"{dataset}.txt"
        listing.parent.mkdir(exist_ok=True)
        with listing.open("a", encoding="utf-8") as lines:
            lines.write(f"{task_id}\n")
        CachedDBHandler.reset()


def main() -> int:
    root = Path(sys.argv[1]).absolute()
    os.environ["APPWORLD_ROOT"] = str(root)
    from appworld.apps.api_lib import set_local_date_and_time
    from appworld.collections.models import ModelCollection  # noqa: F401  loaded once for both processes
    from appworld.common.constants import DEFAULT_SYSTEM_DATETIME

    frozen = set_local_date_and_time(DEFAULT_SYSTEM_DATETIME)
    child = os.fork()
    if child == 0:
        write_base(root)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        return 1
    write_tasks(root)
    frozen.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
