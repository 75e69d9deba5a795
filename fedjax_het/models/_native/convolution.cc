// Two bilinear maps on a CPU, the convolution and its gradient for the kernel, in single precision, the one computed in
// three ways, the other in two. The gradient for the image is a convolution, and made of one by the caller. Also max
// pooling and its gradient, which come between convolutions.

#include "direct.h"
#include "pooling.h"
#include "scatter.h"
#include "winograd.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Buffer = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Buffer>;

// The last four axes. A fifth in front of them counts groups: the clients of a batch, each with a kernel of its own.
static auto Last(const Buffer& buffer) { return buffer.dimensions().last(4); }

// work(first, second, out) for every group.
template <typename Work>
static ffi::Error EachGroup(const Buffer& first, const Buffer& second, Result& out, Work work) {
  const int64_t groups = first.dimensions().size() > 4 ? first.dimensions()[0] : 1;
  const auto at = [&](const auto& buffer, int64_t g) { return buffer.typed_data() + g * (buffer.element_count() / groups); };
  for (int64_t g = 0; g < groups; ++g) work(at(first, g), at(second, g), at(*out, g));
  return ffi::Error::Success();
}

static direct::Shape Described(const Buffer& x, const Buffer& kernel, const Buffer& y, int64_t stride) {
  const auto d = Last(x), k = Last(kernel), o = Last(y);
  return {d[0], d[1], d[2], d[3], k[0], k[1], k[3], o[1], o[2], stride};
}

static ffi::Error DirectConvolve(Buffer x, Buffer kernel, int64_t stride, Result y) {
  const direct::Shape s = Described(x, kernel, *y, stride);
  return EachGroup(x, kernel, y, [&](auto... data) {
    direct::Fitting(s.features, [&](auto w, auto n) { direct::Convolve<w.value, n.value>(s, data...); });
  });
}

static ffi::Error DirectKernelGradient(Buffer x, Buffer y, int64_t stride, Result kernel) {
  const direct::Shape s = Described(x, *kernel, y, stride);
  return EachGroup(x, y, kernel, [&](auto... data) {
    direct::Fitting(s.features, [&](auto w, auto n) { direct::KernelGradient<w.value, n.value>(s, data...); });
  });
}

static ffi::Error ScatterConvolve(Buffer x, Buffer kernel, int64_t top, int64_t left, Result y) {
  const auto d = Last(x), k = Last(kernel), o = Last(*y);
  const scatter::Shape s{d[0], d[1], d[2], d[3], k[0], k[1], k[3], o[1], o[2], top, left};
  return EachGroup(x, kernel, y, [&](auto... data) { scatter::Convolve(s, data...); });
}

static winograd::Shape Described(const Buffer& x, const Buffer& y, int64_t top, int64_t left) {
  const auto d = Last(x), o = Last(y);
  return {d[0], d[1], d[2], d[3], o[3], o[1], o[2], top, left};
}

static ffi::Error WinogradConvolve(Buffer x, Buffer kernel, int64_t top, int64_t left, Result y, bool is_turned) {
  const winograd::Shape s = Described(x, *y, top, left);
  return EachGroup(x, kernel, y, [&](auto... data) {
    Last(kernel)[0] == 3 ? winograd::Convolve<3>(s, is_turned, data...) : winograd::Convolve<5>(s, is_turned, data...);
  });
}

static ffi::Error WinogradKernelGradient(Buffer x, Buffer y, int64_t top, int64_t left, Result kernel) {
  const winograd::Shape s = Described(x, y, top, left);
  return EachGroup(x, y, kernel, [&](auto... data) {
    Last(*kernel)[0] == 3 ? winograd::KernelGradient<3>(s, data...) : winograd::KernelGradient<5>(s, data...);
  });
}

// Clients are more images.
static pooling::Shape DescribedWindows(const Buffer& x, const Buffer& y, int64_t height, int64_t width) {
  const auto d = Last(x), o = Last(y);
  const int64_t images = x.element_count() / std::max<int64_t>(d[1] * d[2] * d[3], 1);
  return {images, d[1], d[2], d[3], o[1], o[2], height, width};
}

static ffi::Error MaxPool(Buffer x, int64_t height, int64_t width, Result y, Result places) {
  pooling::Maxima(DescribedWindows(x, *y, height, width), x.typed_data(), y->typed_data(), places->typed_data());
  return ffi::Error::Success();
}

static ffi::Error MaxPoolGradient(Buffer y, Buffer places, int64_t height, int64_t width, Result x) {
  pooling::Spread(DescribedWindows(*x, y, height, width), y.typed_data(), places.typed_data(), x->typed_data());
  return ffi::Error::Success();
}

#define BINDING ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>()
#define DIRECT BINDING.Attr<int64_t>("stride").Ret<Buffer>()
#define PADDED BINDING.Attr<int64_t>("top").Attr<int64_t>("left").Ret<Buffer>()
#define WINDOW Attr<int64_t>("height").Attr<int64_t>("width").Ret<Buffer>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(direct_convolve, DirectConvolve, DIRECT);
XLA_FFI_DEFINE_HANDLER_SYMBOL(direct_kernel_gradient, DirectKernelGradient, DIRECT);
XLA_FFI_DEFINE_HANDLER_SYMBOL(scatter_convolve, ScatterConvolve, PADDED);
XLA_FFI_DEFINE_HANDLER_SYMBOL(winograd_convolve, WinogradConvolve, PADDED.Attr<bool>("is_turned"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(winograd_kernel_gradient, WinogradKernelGradient, PADDED);
XLA_FFI_DEFINE_HANDLER_SYMBOL(max_pool, MaxPool, ffi::Ffi::Bind().Arg<Buffer>().WINDOW.Ret<Buffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(max_pool_gradient, MaxPoolGradient, BINDING.WINDOW);
