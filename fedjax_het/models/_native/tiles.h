// What both convolutions are made of: vectors of floats, and products of which a tile stays in registers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
constexpr int kWide = 16, kTile = 12;  // floats a register, rows of a tile: 24 of 32 registers hold sums
#else
constexpr int kWide = 8, kTile = 6;  // 12 of 16
#endif

template <int W>
struct Vector {
  typedef float Type __attribute__((vector_size(4 * W), aligned(4)));
};

// The sums of a tile: rows r < R at a + r a_row, features in N registers of W. Both operands advance with the sum.
template <int W, int N, int R>
static inline void Accumulate(typename Vector<W>::Type (&sums)[R][N], const float* a, int64_t a_row, int64_t a_next,
                              const float* b, int64_t b_next, int64_t count) {
  typedef typename Vector<W>::Type V;
  for (int64_t i = 0; i < count; ++i, a += a_next, b += b_next) {
    V right[N];
    for (int v = 0; v < N; ++v) right[v] = *reinterpret_cast<const V*>(b + v * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) sums[r][v] += a[r * a_row] * right[v];
  }
}

// Calls body with a compile-time number of rows.
template <int R, typename Body>
static inline void WithRows(int64_t rows, Body&& body) {
  if (rows == R) {
    body(std::integral_constant<int, R>());
  } else if constexpr (R > 1) {
    WithRows<R - 1>(rows, body);
  }
}

// Cuts `count` into the fewest tiles, of equal size but for the last.
template <typename Body>
static inline void Tiles(int64_t count, Body&& body) {
  const int64_t tiles = (count + kTile - 1) / kTile, size = (count + tiles - 1) / tiles;
  for (int64_t first = 0; first < count; first += size)
    WithRows<kTile>(std::min(size, count - first), [&](auto rows) { body(first, rows); });
}
