"""Writes llama_cpp.json: llama.cpp's token ids of a varied set of texts, for two real models.

    python tests/runtime/goldens/tokenizer/generate.py FOLDER_OF_GGUF_FILES

Needs llama-cpp-python. Texts are stored beside the ids, each with ids for parsed special tokens and
for special-token texts taken literally; BOS is left out and stored once.
"""

import json
import sys
from pathlib import Path

import llama_cpp

MODELS = ("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf")
TARGET = Path(__file__).with_name("llama_cpp.json")

CODE = """def f(x: int) -> str:
\treturn f"{x!r:>10}"  # 0x1F, 1_000.50e-3

    if (a != b && c <= d || !e) { std::cout << "%d\\n"; }
<td class='x'>&nbsp;</td>\r\n"""

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "Hello, world!",
    " leading and trailing ",
    "   three leading, three trailing   ",
    "It's I'm we'll they'd you've WE'LL 'tis o'clock",
    "CamelCaseAndSnake_case and kebab-case, ALLCAPS",
    CODE,
    "0 1 12 123 1234 12345 123456789 3.14159 1,000,000 1e10 ½ Ⅷ ² ٣٤ 一二三",
    "a  b   c    d     e      f" + " " * 40 + "g",
    "tabs\t\t\tand\n\n\nnewlines\n \n  \n\t\n end",
    "CRLF\r\nCRLF\r\n\r\nCR\ronly",
    "=" * 37 + "-" * 50 + "." * 23 + "!" * 7,
    "\n" * 40 + " " * 70 + "\t" * 9,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa hahahahahahahaha abababababababa",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 4,
    "emoji 👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ☃️ ❤️‍🔥 🧑🏿‍🚀",
    "日本語のテキスト、句読点。カタカナ ﾊﾝｶｸ 漢字",
    "中文文本：你好，世界！繁體字測試。",
    "한국어 텍스트 테스트 각",
    "العَرَبِيَّة نص عربي ١٢٣، مرحبا",
    "עִבְרִית טקסט",
    "हिन्दी पाठ क्षत्रिय नमस्ते",
    "ภาษาไทยไม่มีช่องว่าง",
    "Ελληνικά Русский текст Українська",
    "e\u0301 e\u0301e\u0301 é n\u0303 a\u0300\u0316\u0317 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "ﬁ ﬂ ⅓ ① Ⓐ ™ … — “quotes” ‘single’ «guillemets»",
    "\u00a0no-break\u2003em\u3000ideographic\u2028line\u2029paragraph\u0085next\u200bzero\ufeffbom",
    "\x00\x01\x07\x1b[31m\x7f\x80\x9f",
    "\ufffd \ufffd\ufffd Ã© â‚¬ \ue000\uf8ff \U000f0000 \U0010fffd \U0001d518\U0001d52b",
    "𐍈 𠜎 𝔘𝔫𝔦 🂡 \U000e0041",
    "https://example.org/a/b?q=1&r=%20#frag user@example.org C:\\path\\file.txt ~/.bashrc",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "$x^2 + \\frac{a}{b} \\le \\sqrt{\\pi}$ | col | col |\n|---|---|",
    "▁low line▁▁ U+2581 ▁",
    "<0x0A><0x41> <0xFF>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|im_end|>text <|im_end|> text<|endoftext|>",
    "<|im_end|><|im_end|> <|im_start|",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    " <eos> <pad><unk> <unused0><unused42>[multimodal]<mask>",
    "<table><tr><td>1</td></tr></table><h1>x</h1><strong>b</strong>",
    "<repo_name>a<file_sep>b<filename>c<gh_stars>5<reponame>d",
    "< |im_end|> <|im_end |> <|IM_END|> <<bos>> <bos",
    "Ġspace Ċnewline âĢĻ raw byte-level spellings",
]


def main(folder: Path) -> None:
    llama_cpp.llama_backend_init()
    models = {name: model_record(folder / name) for name in MODELS}
    record = {"llama_cpp_python": llama_cpp.__version__, "texts": TEXTS, "models": models}
    text = json.dumps(record, ensure_ascii=True, separators=(",", ":"))
    TARGET.write_text(
        text.replace('"texts":', '\n"texts":').replace('"models":', '\n"models":') + "\n"
    )


def model_record(path: Path) -> dict:
    settings = llama_cpp.llama_model_default_params()
    settings.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    vocab = llama_cpp.llama_model_get_vocab(model)
    size = llama_cpp.llama_vocab_n_tokens(vocab)
    record = {
        "vocab_size": size,
        "eos_ids": [i for i in range(size) if llama_cpp.llama_vocab_is_eog(vocab, i)],
        "empty_with_bos": token_ids(vocab, "", True, True),
        "parsed": [token_ids(vocab, text, False, True) for text in TEXTS],
        "literal": [token_ids(vocab, text, False, False) for text in TEXTS],
    }
    llama_cpp.llama_model_free(model)
    return record


def token_ids(vocab, text: str, adds_special: bool, parses_special: bool) -> list[int]:
    data = text.encode()
    room = (llama_cpp.llama_token * (len(data) + 8))()
    count = llama_cpp.llama_tokenize(
        vocab, data, len(data), room, len(room), adds_special, parses_special
    )
    assert count >= 0, text
    return list(room[:count])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
