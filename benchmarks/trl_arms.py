"""TRL's GRPOTrainer on the tasks of `benchmarks.trl_comparison`, one update at a time, told by its driver.

Runs under an interpreter of its own (requirements/trl.txt). Two arms: `environment_factory` lets TRL play the episodes
by its tool-calling loop; `rollout_func` gives it a rollout with one key/value cache over an episode's turns, from which
ended episodes are dropped. Model, environment, prompts' tokens and tasks are those of the other arm, which is checked.
What TRL has no word for is said by the environment: an ended episode, or one at its turn limit, answers with a text
longer than the completion's budget, upon which TRL ends it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.cache_utils import DynamicCache
from trl import GRPOConfig, GRPOTrainer

from benchmarks.results import clock
from benchmarks.turns import Told
from rised.environments.base import Task
from rised.environments.discovery import get
from rised.models.loading import load_tokenizer
from rised.models.rendering import ChatRendering

TEMPLATE = (
    "{%- for m in messages -%}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%- for c in (m.tool_calls or []) -%}"
    "{%- if c.function.name == 'act' -%}{{ c.function.arguments.get('reply', '') }}"
    "{%- else -%}{{ c.function.name }}{%- for k, v in c.function.arguments.items() %} {{ k }} {{ v }}{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}{{ m.content or '' }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "content": "text",
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"reply": "{content}"}}},
        }
    },
}
"""All that the policy writes is one call of the only tool."""


class Episodes:
    """What both arms share: the environment's settings and the tasks by number."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.spec = get(plan["environment"])
        self.settings = self.spec.settings_type(**plan["settings"])
        self.tasks = [Task(**task) for task in plan["tasks"]]
        self.too_long = "1 " * plan["max_episode_tokens"]

    def factory(shared) -> type:  # noqa: N805 - the class below has a self of its own
        """The class that TRL makes its environments of."""

        class Game:
            def __init__(self) -> None:
                self._environment = shared.spec.make(shared.settings)
                self._reward, self._turns = 0.0, 0

            def reset(self, task: int, **_: Any) -> str:
                self._reward, self._turns, self._over = 0.0, 0, False
                return self._environment.reset(shared.tasks[task], shared.tasks[task].seed)

            def act(self, reply: str) -> str:
                """Reply to the environment.

                Args:
                    reply: what to say

                Returns:
                    What it answers.
                """
                if self._over:
                    return shared.too_long
                self._turns += 1
                result = self._environment.step(reply.removesuffix("<|end|>"))
                self._reward = result.reward or 0.0
                self._over = result.done or self._turns >= shared.plan["max_turns"]
                return shared.too_long if self._over else result.observation

            def get_reward(self) -> float:
                return self._reward

        return Game


class CachedRollout:
    """One key/value cache for a batch of episodes: each turn feeds what is new, padded on the left."""

    def __init__(self, episodes: Episodes, tokenizer: Any) -> None:
        self.episodes, self.rendering = episodes, ChatRendering(tokenizer)
        self.games = [episodes.factory()() for _ in range(episodes.plan["episodes"])]

    @torch.no_grad()
    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        plan, rendering, model = self.episodes.plan, self.rendering, trainer.model
        training = model.training
        model.eval()
        games = self.games[: len(prompts)]
        system = prompts[0][0]["content"]
        started = [rendering.start(system, g.reset(int(p[-1]["content"]))) for g, p in zip(games, prompts, strict=True)]
        ids, masks = [list(first) for first in started], [[0] * len(first) for first in started]
        pending = [list(first) for first in started]
        rows, cache = list(range(len(games))), DynamicCache(config=model.config)
        seen_nT, lengths_n = torch.zeros(len(games), 0, dtype=torch.long), torch.zeros(len(games), dtype=torch.long)
        while rows:
            replies: list[list[int]] = [[] for _ in rows]
            feeds, talking = pending, list(range(len(rows)))
            for count in range(plan["max_new_tokens"]):
                width = max(map(len, feeds))
                new_nT = torch.zeros(len(rows), width, dtype=torch.long)
                real_nT = torch.zeros(len(rows), width, dtype=torch.long)
                for row, feed in enumerate(feeds):
                    if feed:
                        new_nT[row, width - len(feed) :], real_nT[row, width - len(feed) :] = torch.tensor(feed), 1
                positions_nT = (lengths_n[:, None] + real_nT.cumsum(1) - 1).clamp(min=0)
                seen_nT, lengths_n = torch.cat([seen_nT, real_nT], 1), lengths_n + real_nT.sum(1)
                logits_nV = model(
                    input_ids=new_nT,
                    attention_mask=seen_nT,
                    position_ids=positions_nT,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits[:, -1]
                if cache.get_seq_length() != seen_nT.shape[1]:
                    raise AssertionError("the cache did not grow: the policy would have no memory")
                drawn = torch.multinomial(torch.softmax(logits_nV.float(), -1), 1)[:, 0].tolist()
                feeds = [[] for _ in rows]
                for place in talking:
                    replies[place].append(drawn[place])
                    feeds[place] = [drawn[place]]
                talking = [p for p in talking if replies[p][-1] != rendering.end_token_id]
                feeds = [feed if p in talking else [] for p, feed in enumerate(feeds)]
                if not talking or count + 1 == plan["max_new_tokens"]:
                    break
            pending, going = [], []
            for place, (row, reply) in enumerate(zip(rows, replies, strict=True)):
                ended = reply[-1] == rendering.end_token_id
                answer = games[row].act(rendering.decode(reply[:-1] if ended else reply))
                ids[row] += reply
                masks[row] += [1] * len(reply)
                if games[row]._over:
                    continue
                closing = [] if ended else [rendering.end_token_id]
                following = [*closing, *rendering.extend(answer)]
                if len(ids[row]) + len(following) + plan["max_new_tokens"] > plan["max_episode_tokens"]:
                    continue
                ids[row] += following
                masks[row] += [0] * len(following)
                going.append(place)
                pending.append([reply[-1], *following])
            if going and len(going) < len(rows):
                kept = torch.tensor(going)
                cache.batch_select_indices(kept)
                seen_nT, lengths_n = seen_nT[kept], lengths_n[kept]
            rows = [rows[place] for place in going]
        model.train(training)
        return {
            "prompt_ids": started,
            "completion_ids": [row[len(first) :] for row, first in zip(ids, started, strict=True)],
            "logprobs": None,
            "env_mask": [mask[len(first) :] for mask, first in zip(masks, started, strict=True)],
            "won": [game.get_reward() for game in games],
        }


class Trainer(GRPOTrainer):
    """Keeps what the last batch consisted of."""

    batch: dict[str, float] = {}

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with clock() as spent:
            found = super()._generate_and_score_completions(inputs)
        own = found["completion_mask"] * found["tool_mask"]
        self.batch = {
            "tokens": int(found["completion_mask"].sum() + found["prompt_mask"].sum()),
            "generated": int(own.sum()),
            "success": self._metrics["train"]["reward"][-1],
            "rollout_s": spent.wall_s,
        }
        return found


class OneAtATime(TrainerCallback):
    """Makes an update when told to, and says what it took."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.trainer: Trainer | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.told.wait()
        self._open = clock()
        self._spent = self._open.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._open.__exit__(None, None, None)
        assert self.trainer is not None
        self.told.say(wall_s=self._spent.wall_s, cpu_s=self._spent.cpu_s, **self.trainer.batch)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    arm, told = sys.argv[2], Told()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(Path(plan["model"]))  # AutoTokenizer would read this policy's text otherwise
    tokenizer.padding_side = "left"
    model = AutoModelForCausalLM.from_pretrained(plan["model"], dtype=torch.float32, attn_implementation="sdpa")
    episodes = Episodes(plan)
    system = {"role": "system", "content": plan["system_prompt"]}
    numbers = plan["order"]
    settings = GRPOConfig(
        output_dir=plan["folder"],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=plan["micro_batch"],
        gradient_accumulation_steps=plan["episodes"] // plan["micro_batch"],
        num_generations=plan["group"],
        max_completion_length=plan["max_episode_tokens"],
        generation_kwargs={"max_new_tokens": plan["max_new_tokens"]},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=plan["kl"],
        epsilon=0.2,
        num_iterations=1,
        loss_type="grpo",
        scale_rewards="group",
        max_grad_norm=1.0,
        max_steps=len(numbers) * plan["group"] // plan["episodes"],
        gradient_checkpointing=False,
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=plan["seed"] + 1,
        dataloader_pin_memory=False,
    )
    # TRL's own schedule makes the first update of a warm-up at a rate of 0
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan["learning_rate"], betas=tuple(plan["betas"]), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / plan["warmup"]))
    further: dict[str, Any]
    if arm == "environment_factory":
        rendering = ChatRendering(tokenizer)
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
        first = [system, {"role": "user", "content": ""}]
        data = Dataset.from_dict({"prompt": [first] * len(numbers), "task": numbers})
        further = {"environment_factory": episodes.factory()}
        asked = tokenizer.apply_chat_template(
            [system, {"role": "user", "content": "Is it?"}], add_generation_prompt=True, return_dict=False
        )
        if asked != rendering.start(plan["system_prompt"], "Is it?"):
            raise AssertionError("TRL's template and the other arm's rendering make different tokens")
    else:
        prompts = [[system, {"role": "user", "content": str(number)}] for number in numbers]
        data = Dataset.from_dict({"prompt": prompts})
        further = {
            "rollout_func": CachedRollout(episodes, tokenizer),
            "reward_funcs": lambda completions, won, **_: won,
        }
    callback = OneAtATime(told)
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[callback],
        optimizers=(optimizer, schedule),
        **further,
    )
    callback.trainer = trainer
    told.say(ready=True)
    trainer.train()


if __name__ == "__main__":
    main()
