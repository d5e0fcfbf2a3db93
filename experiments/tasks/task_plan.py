"""The runs of a plan of experiments/tasks."""


def expand(plan: dict) -> dict[str, dict]:
    """The runs TASK-KIND of a plan."""
    runs = {}
    for task, part in plan["tasks"].items():
        for kind in part["kinds"]:
            runs[f"{task}-{kind}"] = {
                "task": task,
                "sizes": part["sizes"],
                "shape": plan["shape"] | part["shape"],
                "kind": plan["kinds"][kind],
                "recipe": part["recipe"],
                "learned": plan["learned"],
                "evaluated_rows": plan["evaluated_rows"],
            }
    return runs
