// The definition in the order of the image's pixels, with stride 1:
//
//   y[n, iy + top - ky, ix + left - kx, f] += sum_c x[n, iy, ix, c] k[ky, kx, c, f]
//
// A row of the kernel, turned round, lies in the lanes of the registers: columns times features. No product is spent on
// padding, and a few features fill the registers, which is what the gradient for an image of few channels needs. The tile
// is of one column of the image, so that no two of its rows are added to the same place.

#include "call_frame.h"
#include "tiles.h"

struct Shape {
  int64_t images, height, width, channels, rows, columns, features, out_height, out_width, top, left;
};

// R pixels, each `x_row` from the next, times a part of a row of the kernel, added to R rows of the output.
template <int N, int R>
SEPARATE void AddTile(const float* x, int64_t x_row, int64_t channels, const float* panel, float* to, int64_t to_row) {
  typedef typename Vector<kWide>::Type V;
  V sums[R][N] = {};
  Accumulate<kWide, N, R>(sums, x, x_row, 1, panel, N * kWide, channels);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) *reinterpret_cast<V*>(to + r * to_row + v * kWide) += sums[r][v];
}

// The lanes of each row of the kernel in panels, the last filled up with zeros: [row, panel, channel, lane]. They begin
// with the output that sees a pixel in its last column.
static Room Pack(const Shape& s, const float* kernel, int64_t panels, int64_t lanes) {
  Room packed(s.rows * panels * s.channels * lanes);
  packed.Clear();
  for (int64_t ky = 0; ky < s.rows; ++ky)
    for (int64_t c = 0; c < s.channels; ++c)
      for (int64_t i = 0; i < s.columns * s.features; ++i) {
        const int64_t kx = s.columns - 1 - i / s.features, f = i % s.features;
        packed[((ky * panels + i / lanes) * s.channels + c) * lanes + i % lanes] =
            kernel[((ky * s.columns + kx) * s.channels + c) * s.features + f];
      }
  return packed;
}

template <int N>
static void Convolve(const Shape& s, const float* x, const float* kernel, float* y) {
  constexpr int64_t lanes = N * kWide;
  const int64_t panels = (s.columns * s.features + lanes - 1) / lanes, margin = s.columns - 1;
  const Room packed = Pack(s, kernel, panels, lanes);
  // The output with columns on either side, for what falls outside.
  const int64_t line = (std::max(s.out_width, s.width + s.left) + 2 * margin) * s.features + lanes;
  const Room out(s.out_height * line);
  for (int64_t image = 0; image < s.images; ++image) {
    const float* from = x + image * s.height * s.width * s.channels;
    out.Clear();
    for (int64_t column = 0; column < s.width; ++column)
      for (int64_t ky = 0; ky < s.rows; ++ky) {
        const int64_t first = std::max<int64_t>(0, ky - s.top), last = std::min(s.height, s.out_height + ky - s.top);
        if (first >= last) continue;
        const float* pixels = from + (first * s.width + column) * s.channels;
        float* to = out.data() + (first + s.top - ky) * line + (column + s.left) * s.features;
        for (int64_t p = 0; p < panels; ++p)
          Tiles(last - first, [&](int64_t row, auto rows) {
            AddTile<N, rows.value>(pixels + row * s.width * s.channels, s.width * s.channels, s.channels,
                                   packed.data() + (ky * panels + p) * s.channels * lanes,
                                   to + row * line + p * lanes, line);
          });
      }
    for (int64_t oy = 0; oy < s.out_height; ++oy)
      std::copy_n(out.data() + oy * line + margin * s.features, s.out_width * s.features,
                  y + (image * s.out_height + oy) * s.out_width * s.features);
  }
}

// In panels of one register where that leaves fewer lanes empty, else of two.
static void Convolve(const Shape& s, const float* x, const float* kernel, float* y) {
  const int64_t registers = (s.columns * s.features + kWide - 1) / kWide;
  registers % 2 ? Convolve<1>(s, x, kernel, y) : Convolve<2>(s, x, kernel, y);
}

// x [..., n, h, w, c], kernel [..., kh, kw, c, f] -> [..., n, h', w', f]
extern "C" XLA_FFI_Error* scatter_convolve(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto x = Argument<float>(frame, 0), kernel = Argument<float>(frame, 1), y = Result<float>(frame, 0);
  const Shape s{x.FromLast(4),      x.FromLast(3),      x.FromLast(2),
                x.FromLast(1),      kernel.FromLast(4), kernel.FromLast(3),
                kernel.FromLast(1), y.FromLast(3),      y.FromLast(2),
                Attribute<int64_t>(frame, "top"), Attribute<int64_t>(frame, "left")};
  return EachGroup(frame, 4, [&](auto... data) { Convolve(s, data...); });
}
