"""A target's own answers as text, to build an n-gram model from.

    .venv/bin/python scripts/write_answers.py build/answers.txt
    .venv/bin/specllama ngram build build/answers.txt -m smollm2-135m -o build/answers.ngram
    .venv/bin/specllama bench --suite seeds --ngram build/answers.ngram

The prompts are those of the distillation (scripts/distil/prompts.py), none of the benchmark's own.
Answers are appended; the same command goes on where the last one stopped.
"""

import argparse
import sys
from pathlib import Path

from distil.prompts import make_prompts

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.bench.prompts import builtin
from specllama.text.chat import Message

SEED = 11
BETWEEN = "\n\f\n"
"""What separates answers: no answer has it."""


def main() -> int:
    """Write what is missing; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft", help="it makes no difference")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=96, help="the most tokens of an answer")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    text = args.file.read_text(encoding="utf-8") if args.file.is_file() else ""
    held_out = {prompt.prompt for prompt in builtin()}
    prompts = [text for _, text in make_prompts(args.count, SEED) if text not in held_out]
    missing = prompts[text.count(BETWEEN) :]
    options = ModelOptions(n_ctx=1024, threads=args.threads)
    params = GenerationParams(
        max_tokens=args.tokens, sampling=SamplingParams(temperature=0.7), seed=SEED, logprobs=False
    )
    with (
        SpeculativeDecoder(args.target, args.draft, options=options) as decoder,
        args.file.open("a", encoding="utf-8") as file,
    ):
        for number, prompt in enumerate(missing, len(prompts) - len(missing) + 1):
            answer = decoder.chat([Message("user", prompt)], params).text
            file.write(answer.replace("\f", " ") + BETWEEN)
            file.flush()
            print(f"\r{number} of {len(prompts)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
