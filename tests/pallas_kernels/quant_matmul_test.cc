// Products with packed weights in every instruction set of this machine; made to be run under the
// address and undefined-behaviour sanitizers.
//
// Everything lies in arrays of exactly its size, so that a step outside is seen. Each case is
// multiplied one token at a time on one thread by the scalar code, checked against sums in double,
// and must have the same bits in any instruction set, at any number of tokens and threads, and
// beside other products.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "pallas_kernels/quant_matmul/multiply.h"
#include "tests/pallas_kernels/thread_pool.h"

namespace halogen {
namespace {

struct Matrix {
  int format;
  int64_t rows;
  std::vector<uint8_t> packed;
};

// Random codes and factors; scales of either sign between 1/16 and 1/8.
Matrix RandomMatrix(int format, int64_t rows, int64_t columns, std::mt19937& random) {
  const Format& of = kFormats[format];
  const int64_t groups = Ceil(rows, kRows), group_bytes = GroupBytes(of, columns);
  Matrix matrix{format, rows, std::vector<uint8_t>(groups * group_bytes)};
  for (uint8_t& byte : matrix.packed) byte = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal;
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t* group = matrix.packed.data() + g * group_bytes;
    const int64_t end = of.is_float() ? group_bytes : ScaleBytes(of, columns);
    const bool is_single = of.bits == 32 || of.scales == Scales::kChannel;
    for (int64_t at = 0; at < end; at += is_single ? 4 : 2) {
      const float value = normal(random);
      uint16_t half = (random() & 0x83ff) | 0x2c00;
      if (of.bits == 16) half = format == kBf16 ? FloatToBf16(value) : FloatToHalf(value);
      if (is_single) {
        std::memcpy(group + at, &value, 4);
      } else {
        std::memcpy(group + at, &half, 2);
      }
    }
  }
  return matrix;
}

// Results [T, rows] of each matrix.
std::vector<std::vector<float>> Multiplied(const InstructionSet& isa, Pool& pool,
                                           const std::vector<float>& x, int64_t columns,
                                           const std::vector<Matrix>& matrices, int parts) {
  const auto tokens = static_cast<int64_t>(x.size()) / columns;
  std::vector<std::vector<float>> results;
  for (const Matrix& matrix : matrices) results.emplace_back(tokens * matrix.rows);
  std::vector<Product> products;
  for (size_t i = 0; i < matrices.size(); ++i) {
    products.push_back({matrices[i].format, matrices[i].packed.data(), matrices[i].rows,
                        results[i].data(), kF32});
  }
  MultiplyAll(isa, pool, x.data(), kF32, parts, tokens, columns, products.data(),
              static_cast<int>(products.size()));
  return results;
}

void Fail(const char* what, const InstructionSet& isa, const Matrix& matrix, int64_t columns) {
  std::printf("%s: %s, %s, %d rows, %d columns\n", what, isa.name, kFormats[matrix.format].name,
              static_cast<int>(matrix.rows), static_cast<int>(columns));
  std::exit(1);
}

// The largest sum of rounding errors and, for int8 activations, of their steps.
void CheckSums(const Matrix& matrix, const std::vector<float>& x, int64_t columns, int parts,
               const std::vector<float>& result) {
  const Format& format = kFormats[matrix.format];
  std::vector<float> row(columns);
  for (int64_t n = 0; n < matrix.rows; ++n) {
    DequantizeRow(format, matrix.packed.data(), n, columns, row.data());
    for (size_t t = 0; t * columns < x.size(); ++t) {
      double sum = 0, magnitude = 0, bound = 0;
      for (int64_t k = 0; k < columns; ++k) {
        float top = 0;
        const int64_t begin = k / kBlock * kBlock;
        for (int64_t i = begin; i < std::min(columns, begin + kBlock); ++i) {
          top = std::max(top, std::fabs(x[t * columns + i]));
        }
        const double product = static_cast<double>(row[k]) * x[t * columns + k];
        sum += product;
        magnitude += std::fabs(product);
        // Half a step; a whole one in two parts, whose last code is kept from -128 and 128.
        const float step = parts == 0 ? 0 : parts == 1 ? top / 254 : top / (127 * 256);
        if (!format.is_float()) bound += step * std::fabs(row[k]);
      }
      const float got = result[t * matrix.rows + n];
      if (!(std::fabs(got - sum) <= bound * 1.0001 + magnitude * 1e-5)) {
        Fail("wrong sum", kScalar, matrix, columns);
      }
    }
  }
}

void Check(int format, int64_t rows, int64_t columns, int parts, std::mt19937& random) {
  constexpr int64_t kTokens = 19;
  std::vector<Matrix> matrices;
  matrices.push_back(RandomMatrix(format, rows, columns, random));
  matrices.push_back(RandomMatrix(static_cast<int>(random() % 3), 5, columns, random));
  std::vector<float> x(kTokens * columns);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random) * std::exp(normal(random));

  Pool one(1), three(3);
  std::vector<float> alone(kTokens * rows);
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<float> token(x.begin() + t * columns, x.begin() + (t + 1) * columns);
    const auto result = Multiplied(kScalar, one, token, columns, {matrices[0]}, parts)[0];
    std::copy(result.begin(), result.end(), alone.begin() + t * rows);
  }
  CheckSums(matrices[0], x, columns, parts, alone);

  for (const InstructionSet* isa : kInstructionSets) {
    if (!isa->is_supported()) continue;
    for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{9}, kTokens}) {
      const std::vector<float> first(x.begin(), x.begin() + tokens * columns);
      for (Pool* pool : {&one, &three}) {
        const auto result = Multiplied(*isa, *pool, first, columns, matrices, parts)[0];
        if (std::memcmp(result.data(), alone.data(), result.size() * 4) != 0) {
          Fail("different bits", *isa, matrices[0], columns);
        }
      }
    }
  }
}

// Many products on one small pool at the same time.
void CheckTogether(std::mt19937& random) {
  const std::vector<Matrix> matrices = {RandomMatrix(6, 200, 96, random)};
  std::vector<float> x(40 * 96, 0.5f);
  Pool one(1), two(2);
  const auto want = Multiplied(kScalar, one, x, 96, matrices, 2)[0];
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        const auto got = Multiplied(kScalar, two, x, 96, matrices, 2)[0];
        if (got != want) Fail("different beside others", kScalar, matrices[0], 96);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace halogen

int main() {
  std::mt19937 random(7);
  for (int format = 0; format < halogen::kNumFormats; ++format) {
    const halogen::Format& of = halogen::kFormats[format];
    const bool is_super = of.scales == halogen::Scales::kSuperMinimum || of.is_half();
    const bool is_free = of.is_float() || of.scales == halogen::Scales::kChannel;
    const int64_t unit = is_super ? 256 : is_free ? 37 : 32;
    for (const int parts : {0, 1, 2}) {
      halogen::Check(format, 1, unit, parts, random);
      halogen::Check(format, 70, 3 * unit, parts, random);
    }
  }
  halogen::CheckTogether(random);
  std::printf("every product is right\n");
  return 0;
}
