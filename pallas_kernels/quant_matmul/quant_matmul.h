// What the instruction sets share: prepared activations, a product, and the functions that each of
// them provides. Knows nothing of XLA.
//
// The arithmetic is the same at any number of tokens, in any thread and instruction set: a block's
// dot product is an integer, and a result adds its blocks in the order of the columns with one
// fused multiply-add each. An activation rounded to two int8 parts is the integer 256 first +
// second, so that the two products of a block are added as integers too.

#ifndef HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_QUANT_MATMUL_H_
#define HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_QUANT_MATMUL_H_

#include <cstdint>

#include "pallas_kernels/quant_matmul/layout.h"

namespace halogen {

constexpr int kMaxTile = 8;  // tokens of a tile in any instruction set

// Which starting values of integer dot products a step needs: -zero x (sum of the activations).
constexpr int kZeros[] = {8, 16, 128, 32};  // the last one per half block
constexpr int kNumZeros = 4;
constexpr int ZeroIndex(int zero) {
  for (int i = 0; i < kNumZeros; ++i) {
    if (kZeros[i] == zero) return i;
  }
  return -1;
}

// The activations x [T, K], cut into tiles of nearly equal numbers of tokens. Within a tile the
// tokens are interleaved, so that a product walks through memory once.
struct Activations {
  // What the products need.
  bool needs_values = false;  // float32
  bool needs_codes = false;   // int8
  bool needs_zero[kNumZeros] = {};

  int parts;  // int8 codes of a number, 0 = it stays float32
  int64_t num_tokens, columns;
  int64_t num_tiles;
  char* data;          // num_tiles x tile_bytes
  int64_t tile_bytes;  // the offsets below are within a tile
  int64_t values_at, codes_at, scale_at, sum_at, start_at[kNumZeros];

  int64_t blocks() const { return Ceil(columns, kBlock); }
  int64_t first_token(int64_t tile) const { return tile * num_tokens / num_tiles; }
  int tile_tokens(int64_t tile) const {
    return static_cast<int>(first_token(tile + 1) - first_token(tile));
  }

  // Chooses the tiles and places the parts. Returns the bytes that data must have.
  int64_t Place(int max_tile) {
    num_tiles = Ceil(num_tokens, max_tile);
    const int64_t tokens = Ceil(num_tokens, num_tiles);
    int64_t at = 0;
    auto place = [&](bool is_needed, int64_t bytes) {
      const int64_t begin = at;
      if (is_needed) at += Aligned(bytes * tokens);
      return begin;
    };
    values_at = place(needs_values, columns * 4);
    codes_at = place(needs_codes, blocks() * kBlock * parts);
    scale_at = place(needs_codes, blocks() * 4);
    sum_at = place(needs_codes, blocks() * 4);
    for (int i = 0; i < kNumZeros; ++i) {
      start_at[i] = place(needs_zero[i], blocks() * (kZeros[i] == 32 ? 8 : 4));
    }
    tile_bytes = at;
    return num_tiles * tile_bytes;
  }
};

// One tile of prepared activations with n tokens. A number's code is 256 first + second where it
// has two parts.
struct Tile {
  const float* values;   // [K][n]
  const int8_t* codes;   // [K / 4][parts][n][4]
  const float* scale;    // [K / 32][n], of the codes
  const float* sum;      // [K / 32][n], scale x (sum of the codes)
  const int32_t* start;  // [K / 32][n] or [K / 16][n], for the product's zero
};

// One packed matrix [N, K] and its result [T, N].
struct Product {
  int format;  // place in kFormats
  const uint8_t* packed;
  int64_t rows;
  void* out;
  int out_type;  // kF32, kBf16, kF16
  // A matrix of floats that is not packed, [rows, columns]: who multiplies some groups interleaves
  // them first, and `packed` begins with group `first_group`.
  const void* plain = nullptr;
  int64_t first_group = 0;

  int64_t groups() const { return Ceil(rows, kRows); }
};

// A thread's own memory for one group of rows.
struct Scratch {
  uint8_t* codes;   // [K][32], one byte each
  float* scale;     // [K / 16][32] at most
  float* minimum;   // [K / 32][32]
  float* values;    // [K][32]

  static int64_t Bytes(int64_t columns) {
    const int64_t padded = Ceil(columns, kBlock) * kBlock;
    return padded * kRows * (1 + 4) + padded / kBlock * kRows * 4 * 3;
  }
  Scratch(char* memory, int64_t columns) {
    const int64_t padded = Ceil(columns, kBlock) * kBlock;
    codes = reinterpret_cast<uint8_t*>(memory);
    values = reinterpret_cast<float*>(memory + padded * kRows);
    scale = values + padded * kRows;
    minimum = scale + padded / kBlock * 2 * kRows;
  }
};

struct InstructionSet {
  const char* name;
  bool (*is_supported)();
  int max_tile[3];  // tokens, by the number of parts

  // Fills one tile from x [T, K] of type kF32, kBf16 or kF16.
  void (*prepare)(const Activations& activations, const void* x, int type, int64_t tile);
  // Multiplies row groups [group_begin, group_end) with tiles [tile_begin, tile_end).
  void (*multiply)(const Product& product, const Activations& activations, int64_t group_begin,
                   int64_t group_end, int64_t tile_begin, int64_t tile_end,
                   const Scratch& scratch);
};

extern const InstructionSet kScalar;
#if defined(__x86_64__)
extern const InstructionSet kAvx2, kAvxVnni, kAvx512;
#elif defined(__aarch64__)
extern const InstructionSet kNeon;
#endif

// Fastest first.
#if defined(__x86_64__)
inline const InstructionSet* const kInstructionSets[] = {&kAvx512, &kAvxVnni, &kAvx2, &kScalar};
#elif defined(__aarch64__)
inline const InstructionSet* const kInstructionSets[] = {&kNeon, &kScalar};
#else
inline const InstructionSet* const kInstructionSets[] = {&kScalar};
#endif

}  // namespace halogen

#endif  // HALOGEN_PALLAS_KERNELS_QUANT_MATMUL_QUANT_MATMUL_H_
