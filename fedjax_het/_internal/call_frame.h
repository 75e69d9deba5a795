// Calls of compiled functions by XLA, through its interface in C: that in C++ takes two seconds more to compile.

#pragma once

#include <cstdint>
#include <cstring>

#include "xla/ffi/api/c_api.h"

// Whether XLA asks which version of the interface the function was compiled with; then the call is over.
static inline bool AnswersVersion(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;  // its type differs between versions of JAX
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  auto& version = reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata->api_version;
  version.major_version = XLA_FFI_API_MAJOR;
  version.minor_version = XLA_FFI_API_MINOR;
  return true;
}

template <typename T>
struct Array {
  T* data;
  const int64_t* dims;
  int64_t rank;

  explicit Array(void* buffer) {
    const auto& of = *static_cast<XLA_FFI_Buffer*>(buffer);
    data = static_cast<T*>(of.data), dims = of.dims, rank = of.rank;
  }

  int64_t Size() const {
    int64_t size = 1;
    for (int64_t axis = 0; axis < rank; ++axis) size *= dims[axis];
    return size;
  }

  int64_t FromLast(int64_t axis) const { return dims[rank - axis]; }
};

template <typename T>
static inline Array<T> Argument(XLA_FFI_CallFrame* frame, int64_t i) {
  return Array<T>(frame->args.args[i]);
}

template <typename T>
static inline Array<T> Result(XLA_FFI_CallFrame* frame, int64_t i) {
  return Array<T>(frame->rets.rets[i]);
}

// The number or boolean of this name.
template <typename T>
static inline T Attribute(XLA_FFI_CallFrame* frame, const char* name) {
  int64_t i = 0;
  while (std::strncmp(frame->attrs.names[i]->ptr, name, frame->attrs.names[i]->len)) ++i;
  return *static_cast<T*>(static_cast<XLA_FFI_Scalar*>(frame->attrs.attrs[i])->value);
}

// work(first argument, second, result) for every group of arrays of `axes` axes. A further axis in front counts groups:
// the clients of a batch.
template <typename Work>
static inline XLA_FFI_Error* EachGroup(XLA_FFI_CallFrame* frame, int64_t axes, Work&& work) {
  const auto first = Argument<float>(frame, 0), second = Argument<float>(frame, 1), out = Result<float>(frame, 0);
  const int64_t groups = first.rank > axes ? first.dims[0] : 1;
  for (int64_t g = 0; g < groups; ++g)
    work(first.data + g * (first.Size() / groups), second.data + g * (second.Size() / groups),
         out.data + g * (out.Size() / groups));
  return nullptr;
}
