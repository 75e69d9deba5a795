// Convolution with a square kernel of 3 or 5 and stride 1 by fewer multiplications (Winograd; Toom and Cook).
//
//   y = A' [(G k G') * (B' x B)] A      a tile of x, S x S with S = K + 3, to one of y, 4 x 4; * entry by entry
//
// summed over channels before A: S^2 products of matrices, with (4 K)^2 / S^2 = 4 (K = 3) or 6.25 (K = 5) times fewer
// multiplications than the definition. The gradient for the kernel is the same sum read backwards,
// G' [sum (B' x B) * (A y A')] G.

#include "call_frame.h"
#include "toom_cook.h"

constexpr int64_t kSummed = 64;  // channels that one sum goes over; rounding would grow with the root of all channels
constexpr int64_t kTiles = 8 * kTile;  // that one sum goes over, in the gradient
constexpr int64_t kFew = 128;    // tiles, so few that transforming the kernel takes longer than the products

// R rows of a product, `panel` features wide: into `to`, or added to it.
template <int R>
SEPARATE void Product(int64_t panel, const float* a, int64_t a_row, int64_t a_next, const float* b, int64_t b_next,
                      int64_t count, float* to, int64_t to_row, bool adds) {
  const auto work = [&](auto registers) {
    constexpr int N = registers.value;
    Floats sums[R][N] = {};
    Accumulate<kWide, N, R>(sums, a, a_row, a_next, b, b_next, count);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) {
        Floats* out = reinterpret_cast<Floats*>(to + r * to_row + v * kWide);
        *out = adds ? *out + sums[r][v] : sums[r][v];
      }
  };
  if (panel == kWide)
    work(std::integral_constant<int, 1>());
  else
    work(std::integral_constant<int, 2>());
}

struct Shape {
  int64_t images, height, width, channels, features, out_height, out_width, top, left;
};

// The tiles of all images in one row, a block of them at a time, the features, a group of panels at a time, and the
// channels: of few tiles, which are one block, a slice of them at a time, whose kernels stay in the cache until their use.
template <int K>
struct Blocks {
  const Shape& s;
  int64_t rows = (s.out_height + kOut - 1) / kOut, columns = (s.out_width + kOut - 1) / kOut;
  int64_t count = s.images * rows * columns;
  int64_t panel = s.features <= kWide ? kWide : 2 * kWide;
  bool is_few = count <= kFew;
  int64_t slice = is_few ? std::min(kSummed, s.channels) : s.channels;
  int64_t group = Group(), size = is_few ? count : Size();
  // A register between planes, so that equal entries share no set of the cache.
  int64_t x_plane = size * s.channels + kWide, y_plane = size * group + kWide, k_plane = slice * group + kWide;

  // As many features as kernels take 4 MB for, transformed, but at least a panel: a cache holds them between blocks. The
  // kernels of a slice take 1 MB.
  int64_t Group() const {
    const int64_t fitting = (is_few ? 1 << 18 : 1 << 20) / (kPlanes<K> * slice * panel);
    const int64_t panels = (s.features + panel - 1) / panel;
    return std::min(std::max<int64_t>(fitting, 1), panels) * panel;
  }

  // As many tiles as the cache of a core holds planes of; where that is few, as many as make reading kernels worth it.
  int64_t Size() const {
    const int64_t kept = (1 << 17) / (kPlanes<K> * (s.channels + group)), fitting = (kept + kTile - 1) / kTile * kTile;
    return std::min(count, fitting >= 2 * kTile ? std::min(fitting, kTiles) : kTiles);
  }

  // body(first feature, how many) for each group; likewise channels for each slice, and tiles for each block.
  template <typename Body>
  void EachGroup(Body&& body) const { Cut(s.features, group, body); }
  template <typename Body>
  void EachSlice(Body&& body) const { Cut(s.channels, slice, body); }
  template <typename Body>
  void EachBlock(Body&& body) const { Cut(count, size, body); }

  template <typename Body>
  static void Cut(int64_t total, int64_t part, Body&& body) {
    for (int64_t first = 0; first < total; first += part) body(first, std::min(part, total - first));
  }

  // Whether the planes of a block's input are not those of the last group or slice: there is one room for all blocks.
  bool IsInputNew(int64_t first_feature, int64_t first_channel) const {
    return count > size || !(first_feature || first_channel);
  }

  // body(image, the tile's first row and column in the output).
  template <typename Body>
  void At(int64_t tile, Body&& body) const {
    const int64_t inside = tile % (rows * columns);
    body(tile / (rows * columns), inside / columns * kOut, inside % columns * kOut);
  }
};

// visit(entry, pixel) for a tile of Side x Side pixels of an image, from row `top` and column `left` on; null outside.
template <int Side, typename Pixel, typename Visit>
static inline void EachPixel(Pixel* image, int64_t height, int64_t width, int64_t channels, int64_t top, int64_t left,
                             Visit&& visit) {
  for (int i = 0; i < Side; ++i)
    for (int j = 0; j < Side; ++j) {
      const int64_t row = top + i, column = left + j;
      const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
      visit(i * Side + j, is_inside ? image + (row * width + column) * channels : nullptr);
    }
}

// Stands in for pixels outside of the image, and for those whose channels do not fill registers: all others are read and
// written in place.
class Spare {
 public:
  Spare(int64_t lanes, int entries)
      : room((lanes + kWide) / kWide * kWide), zeros(room), pixels(entries * room) {
    zeros.Clear();
  }

  const float* ToRead(int entry, const float* pixel, int64_t lanes) const {
    if (!pixel) return zeros.data();
    return lanes % kWide ? static_cast<const float*>(std::memcpy(At(entry), pixel, 4 * lanes)) : pixel;
  }

  float* ToWrite(int entry, float* pixel, int64_t lanes) const {
    return pixel && lanes % kWide == 0 ? pixel : At(entry);
  }

 private:
  float* At(int entry) const { return pixels.data() + entry * room; }

  int64_t room;
  Room zeros, pixels;
};

// The planes of a block of x: planes[p][tile][channel].
template <int K>
static void PlanesOfInput(const Blocks<K>& b, const float* x, int64_t first, int64_t count, const Spare& spare,
                          float* planes) {
  const Shape& s = b.s;
  for (int64_t t = 0; t < count; ++t)
    b.At(first + t, [&](int64_t image, int64_t row, int64_t column) {
      const float* at[kPlanes<K>];
      EachPixel<kSide<K>>(x + image * s.height * s.width * s.channels, s.height, s.width, s.channels, row - s.top,
                          column - s.left, [&](int e, const float* x) { at[e] = spare.ToRead(e, x, s.channels); });
      Sandwich<Maps<K>::input>([&](int e) { return at[e]; }, Spaced(planes + t * s.channels, b.x_plane), s.channels);
    });
}

// Up to kWide channels of a panel of the kernel [K, K, channel, feature], or, turned by half a turn, of that which is
// stored as [K, K, feature, channel]: block[k][c][f], with any numbers beyond the features.
template <int K>
static void ReadKernel(const Blocks<K>& b, bool is_turned, const float* kernel, int64_t first_channel, int64_t channels,
                       int64_t first_feature, int64_t features, float* block) {
  const Shape& s = b.s;
  for (int64_t k = 0; k < K * K; ++k, block += kWide * b.panel)
    if (is_turned) {
      const float* from = kernel + ((K * K - 1 - k) * s.features + first_feature) * s.channels + first_channel;
      for (int64_t f = 0; f < features; ++f, from += s.channels)
        for (int64_t c = 0; c < channels; ++c) block[c * b.panel + f] = from[c];
    } else {
      const float* from = kernel + (k * s.channels + first_channel) * s.features + first_feature;
      for (int64_t c = 0; c < channels; ++c, from += s.features)
        for (int64_t f = 0; f < b.panel; f += kWide)
          *reinterpret_cast<Floats*>(block + c * b.panel + f) = LoadSome(from + f, features - f);
    }
}

template <int K>
static void Convolve(const Shape& s, bool is_turned, const float* x, const float* kernel, float* y) {
  constexpr int P = kPlanes<K>;
  const Blocks<K> b{s};
  const Room k_planes(P * b.k_plane), x_planes(P * b.x_plane), y_planes(P * b.y_plane);
  const Spare spare(std::max(s.channels, b.group), P);
  const Room block(K * K * kWide * b.panel);
  const auto transform_kernel = [&](int64_t first_feature, int64_t features, int64_t first_channel, int64_t channels) {
    // (c, f) pairs of a panel are the lanes: planes[p][panel][c][f].
    for (int64_t f = 0; f < features; f += b.panel)
      for (int64_t c = 0; c < channels; c += kWide) {
        const int64_t count = std::min<int64_t>(kWide, channels - c);
        ReadKernel<K>(b, is_turned, kernel, first_channel + c, count, first_feature + f,
                      std::min(b.panel, features - f), block.data());
        Sandwich<Maps<K>::kernel>(Spaced(block.data(), kWide * b.panel),
                                  Spaced(&k_planes[f * b.slice + c * b.panel], b.k_plane), count * b.panel);
      }
  };
  const auto write = [&](int64_t first_feature, int64_t features, int64_t tile, const float* planes) {
    b.At(tile, [&](int64_t image, int64_t row, int64_t column) {
      float *at[kOut * kOut], *const out = y + image * s.out_height * s.out_width * s.features + first_feature;
      const auto each = [&](auto visit) {
        EachPixel<kOut>(out, s.out_height, s.out_width, s.features, row, column, visit);
      };
      each([&](int e, float* y) { at[e] = spare.ToWrite(e, y, features); });
      Sandwich<Maps<K>::output>(Spaced(planes, b.y_plane), [&](int e) { return at[e]; }, features);
      each([&](int e, float* y) {
        if (y && y != at[e]) std::memcpy(y, at[e], 4 * features);
      });
    });
  };
  b.EachGroup([&](int64_t first_feature, int64_t features) {
    b.EachSlice([&](int64_t first_channel, int64_t channels) {
      transform_kernel(first_feature, features, first_channel, channels);
      b.EachBlock([&](int64_t first, int64_t count) {
        if (b.IsInputNew(first_feature, first_channel)) PlanesOfInput(b, x, first, count, spare, x_planes.data());
        for (int p = 0; p < P; ++p)
          for (int64_t f = 0; f < features; f += b.panel)
            for (int64_t c = 0; c < channels; c += kSummed)
              Tiles(count, [&](int64_t t, auto r) {
                Product<r.value>(b.panel, &x_planes[p * b.x_plane + t * s.channels + first_channel + c], s.channels, 1,
                                 &k_planes[p * b.k_plane + f * b.slice + c * b.panel], b.panel,
                                 std::min(kSummed, channels - c), &y_planes[p * b.y_plane + t * b.group + f], b.group,
                                 first_channel + c > 0);
              });
        if (first_channel + channels < s.channels) return;
        for (int64_t t = 0; t < count; ++t) write(first_feature, features, first + t, &y_planes[t * b.group]);
      });
    });
  });
}

template <int K>
static void KernelGradient(const Shape& s, const float* x, const float* y, float* kernel) {
  constexpr int P = kPlanes<K>;
  const Blocks<K> b{s};
  const Room k_planes(P * b.k_plane), x_planes(P * b.x_plane), y_planes(P * b.y_plane);
  const Spare spare(std::max(s.channels, b.group), P);
  const Room k_panel(K * K * b.slice * b.panel);
  const auto read = [&](int64_t first_feature, int64_t features, int64_t tile, float* planes) {
    b.At(tile, [&](int64_t image, int64_t row, int64_t column) {
      const float* at[kOut * kOut];
      EachPixel<kOut>(y + image * s.out_height * s.out_width * s.features + first_feature, s.out_height, s.out_width,
                      s.features, row, column, [&](int e, const float* y) { at[e] = spare.ToRead(e, y, features); });
      Sandwich<Maps<K>::output_back>([&](int e) { return at[e]; }, Spaced(planes, b.y_plane), features);
    });
  };
  b.EachGroup([&](int64_t first_feature, int64_t features) {
    b.EachSlice([&](int64_t first_channel, int64_t channels) {
      b.EachBlock([&](int64_t first, int64_t count) {
        if (b.IsInputNew(first_feature, first_channel)) PlanesOfInput(b, x, first, count, spare, x_planes.data());
        if (!first_channel)
          for (int64_t t = 0; t < count; ++t) read(first_feature, features, first + t, &y_planes[t * b.group]);
        for (int64_t t = 0; t < count; t += kTiles)
          for (int p = 0; p < P; ++p)
            for (int64_t f = 0; f < features; f += b.panel)
              Tiles(channels, [&](int64_t c, auto r) {
                Product<r.value>(b.panel, &x_planes[p * b.x_plane + t * s.channels + first_channel + c], 1, s.channels,
                                 &y_planes[p * b.y_plane + t * b.group + f], b.group, std::min(kTiles, count - t),
                                 &k_planes[p * b.k_plane + f * b.slice + c * b.panel], b.panel, first + t > 0);
              });
      });
      for (int64_t f = 0; f < features; f += b.panel) {
        const int64_t width = std::min(b.panel, features - f);
        Sandwich<Maps<K>::kernel_back>(Spaced(&k_planes[f * b.slice], b.k_plane),
                                       Spaced(k_panel.data(), b.slice * b.panel), channels * b.panel);
        for (int64_t k = 0; k < K * K; ++k)
          for (int64_t c = 0; c < channels; ++c)
            std::memcpy(kernel + (k * s.channels + first_channel + c) * s.features + first_feature + f,
                        &k_panel[(k * b.slice + c) * b.panel], 4 * width);
      }
    });
  });
}

static Shape Described(XLA_FFI_CallFrame* frame, const Array<float>& x, const Array<float>& y) {
  return {x.FromLast(4), x.FromLast(3), x.FromLast(2), x.FromLast(1), y.FromLast(1), y.FromLast(3), y.FromLast(2),
          Attribute<int64_t>(frame, "top"), Attribute<int64_t>(frame, "left")};
}

// x [..., n, h, w, c], kernel [..., K, K, c, f], or [..., K, K, f, c] if it is turned -> [..., n, h', w', f]
extern "C" XLA_FFI_Error* winograd_convolve(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(frame, Argument<float>(frame, 0), Result<float>(frame, 0));
  const int64_t side = Argument<float>(frame, 1).FromLast(4);
  const bool is_turned = Attribute<bool>(frame, "is_turned");
  return EachGroup(frame, 4, [&](auto... data) {
    side == 3 ? Convolve<3>(s, is_turned, data...) : Convolve<5>(s, is_turned, data...);
  });
}

// x [..., n, h, w, c], the gradient for y [..., n, h', w', f] -> [..., K, K, c, f]
extern "C" XLA_FFI_Error* winograd_kernel_gradient(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(frame, Argument<float>(frame, 0), Argument<float>(frame, 1));
  const int64_t side = Result<float>(frame, 0).FromLast(4);
  return EachGroup(frame, 4, [&](auto... data) {
    side == 3 ? KernelGradient<3>(s, data...) : KernelGradient<5>(s, data...);
  });
}
