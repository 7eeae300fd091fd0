"""How text is cut into words before byte pairs merge, by the name in tokenizer.ggml.pre.

One literal table. Each pattern is applied in turn to the pieces that the one before left; matches
and the text between them become pieces. Names and patterns are llama.cpp's
(llama_vocab::impl::load, llm_tokenizer_bpe); where its pattern only approximates the model's
tokenizer.json (tekken, gpt-4o, tiny_aya, kimi-k2: letters with combining marks), the pattern is
that of tokenizer.json.
"""

from typing import NamedTuple

import tokenizers
from tokenizers import pre_tokenizers


class Split(NamedTuple):
    """The rules behind one or more names of pre-tokenizers."""

    names: str  # separated by spaces
    patterns: tuple[str, ...]
    is_whole_word_first: bool = False  # a word that is a token is not built by merges
    adds_bos: bool = False  # unless the file says otherwise


_DIGIT, _DIGITS_3 = r"\p{N}", r"\p{N}{1,3}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDING = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _gpt4(digits: str, letters: str = r"\p{L}", spaces: str = _SPACES) -> str:
    """GPT-4's pattern and its relatives: English endings, words, digits, symbols, white space."""
    symbols = rf"[^\s{letters}\p{{N}}]+[\r\n]*"
    return rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?{symbols}|{spaces}"


def _by_case(digits: str, ending: str = "", but: str = "", after_symbols: str = r"[\r\n/]*") -> str:
    """GPT-4o's pattern and its relatives: a word ends where a capital follows small letters."""
    start = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]",
    )
    words = f"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{after_symbols}|{_SPACES}"


_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_CHINESE_JAPANESE = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_CHINESE_KOREAN = "[一-龥\u0800-一가-\ud7ff]+"
_WORDS_AND_STOPS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGITS_3_FROM_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_KIMI = r"\p{Han}+|" + _by_case(_DIGITS_3, f"{_ENDING}?", r"&&[^\p{Han}]", r"[\r\n]*")
_SEED = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"

# Letters that have a case, as DeepSeek LLM's tokenizer.json lists them.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ"
    "-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

SPLITS = (
    Split("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    Split(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        (_gpt4(_DIGITS_3),),
        is_whole_word_first=True,
        adds_bos=True,
    ),
    Split("dbrx smaug-bpe chatglm-bpe", (_gpt4(_DIGITS_3),)),
    Split("glm4 glm5", (_gpt4(_DIGITS_3),), is_whole_word_first=True),
    Split("minicpm5", (_DIGITS_3, _gpt4(r"\p{N}+")), is_whole_word_first=True),
    Split(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        (_gpt4(_DIGIT),),
    ),
    Split("qwen35", (_gpt4(_DIGIT, r"\p{L}\p{M}"),)),
    Split(
        "bailingmoe bailingmoe2 llada-moe",
        (_gpt4(_DIGIT, spaces=r"\s*[\r\n]|\s+(?!\S)|\s+"),),
    ),
    Split("seed-coder", (_SEED,)),
    Split(
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 mellum gigachat a.x-4.0",
        (_GPT2,),
    ),
    Split(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        (_DIGIT, _GPT2),
    ),
    Split("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    Split(
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _CHINESE_KOREAN,
            r"\p{N}+",
        ),
    ),
    Split("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_KOREAN, _DIGIT)),
    Split(
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        (_DIGITS_3, _CHINESE_JAPANESE, _DEEPSEEK3),
    ),
    Split("tekken", (_by_case(_DIGIT),), is_whole_word_first=True, adds_bos=True),
    Split("gpt-4o llama4 kanana2 talkie minimax-m2", (_by_case(_DIGITS_3, f"{_ENDING}?"),)),
    Split("tiny_aya cohere2moe", (_DIGITS_3_FROM_RIGHT, _by_case(_DIGITS_3, f"{_ENDING}?"))),
    Split("kimi-k2", (_KIMI,)),
    Split("poro-chat bloom gpt3-finnish", (_WORDS_AND_STOPS,)),
    Split("viking", (_WORDS_AND_STOPS, _DIGIT)),
)

SPLIT_OF = {name: split for split in SPLITS for name in split.names.split()}


def pre_tokenizer(split: Split) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a byte-level BPE backend: cut, then write bytes as characters."""
    cuts = [
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in split.patterns
    ]
    return pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
