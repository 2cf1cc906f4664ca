"""The WebShop environment: one shopping episode behind the common protocol.

Actions are ``search[keywords]`` and ``click[value]``; an impossible action changes nothing; only the purchase ends the
episode, with WebShop's reward. Success is a reward of 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.webshop.expert import shop_well
from rised.environments.webshop.goals import Goal
from rised.environments.webshop.log import StepLog
from rised.environments.webshop.session import SUB_PAGES, Page, Session
from rised.environments.webshop.settings import WebshopSettings
from rised.environments.webshop.store import load_shop
from rised.environments.webshop.styles import STYLES, Click


class WebshopEnvironment:
    """One customer at a time in the shop of the settings. Nothing in an episode is random: ``seed`` has no effect."""

    def __init__(self, settings: WebshopSettings) -> None:
        self._settings = settings
        self._shop = load_shop(settings)
        self._style = STYLES[settings.prompt_style]()
        self._session: Session | None = None
        self._log: StepLog | None = None

    @property
    def session(self) -> Session:
        """The live episode; EnvironmentFault before the first reset."""
        if self._session is None:
            raise EnvironmentFault("webshop: reset must be called before the episode is used")
        return self._session

    def system_prompt(self) -> str:
        return self._style.system_prompt(SUB_PAGES if self._settings.show_attributes else SUB_PAGES[:-1])

    def reset(self, task: Task, seed: int) -> str:
        """Open the search page for the task's goal; EnvironmentFault names what is wrong with a task."""
        for name in ("goal", "shop"):
            if name not in task.payload:
                raise EnvironmentFault(f"webshop task {task.task_id}: payload lacks {name!r}; prepare the tasks again")
        if task.payload["shop"] != self._shop.key:
            raise EnvironmentFault(
                f"webshop task {task.task_id} belongs to catalogue {task.payload['shop']}, the settings name "
                f"{self._shop.key}; prepare the tasks again or restore the settings"
            )
        goal = Goal.from_payload(task.payload["goal"])
        self._session = Session(self._shop, goal, self._settings.page_size, self._settings.show_attributes)
        self._log = StepLog(self._session)
        return self._style.render(self._session)

    def step(self, action: str) -> StepResult:
        """Execute one reply; EnvironmentFault after the purchase."""
        session, log = self.session, self._log
        if session.page is Page.DONE or log is None:
            raise EnvironmentFault("webshop: step after the purchase; call reset first")
        page_before, state = session.page, self._state()
        parsed = self._style.read(action)
        click: Click | None = None
        valid = False
        if parsed and parsed[0] == "search":
            valid = session.search(parsed[1])
        elif parsed:
            click = self._style.resolve(session, parsed[1])
            valid = session.click(*click)
        if not valid:
            observation = self._style.refusal(session)
        elif click and page_before is session.page is Page.ITEM:
            observation = self._style.confirm(session, click)
        else:
            observation = self._style.render(session)
        info = log.step(parsed, click, page_before, valid, state != self._state())
        mapped = f"{parsed[0]}[{click.name if click else parsed[1]}]" if parsed else action.strip()
        if session.purchase is None:
            return StepResult(observation, False, mapped, valid, info=info)
        return StepResult(
            observation,
            True,
            mapped,
            valid,
            reward=session.purchase.reward,
            success=session.purchase.success,
            stop="environment_done",
            info=info,
        )

    def _state(self) -> tuple[object, ...]:
        session = self.session
        return session.page, session.query, session.page_number, session.asin, tuple(session.options.items())

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        """See :func:`rised.environments.webshop.expert.shop_well`; bare actions, spelled in the settings' style."""
        return shop_well(self.session, self._style, seed, noise)

    def close(self) -> None:
        self._session = self._log = None
