#include "engine/snapshot/state_encoding.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace polysketch {
namespace {

constexpr std::string_view kNames[] = {"f32", "bf16", "f32-zstd", "bf16-zstd"};

// Higher levels compress states by less than a percent more, at a third of the speed.
constexpr int kZstdLevel = 1;
constexpr int kMaxWindowLog = 21;  // that of the level is 19

size_t ValueBytes(StateEncoding encoding) {
  return encoding == StateEncoding::kBf16 || encoding == StateEncoding::kBf16Zstd ? 2 : 4;
}
bool IsCompressed(StateEncoding encoding) {
  return encoding == StateEncoding::kF32Zstd || encoding == StateEncoding::kBf16Zstd;
}

// Rounds to nearest even. Finite values above the largest bf16 become the largest bf16, not
// infinity.
uint16_t RoundToBf16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (rounded > 0x7F7F ? 0x7F7F : rounded));
}

// Values of a span.
constexpr size_t kSpanValues = 64 << 10;

// The bytes of a value, of which `half` keeps the upper two, rounded.
uint32_t ValueBits(const uint8_t* value, bool half) {
  uint32_t bits = 0;
  std::memcpy(&bits, value, sizeof(bits));
  return half ? RoundToBf16(bits) : bits;
}

// Calls write(span) for the encoded values before compression: the values one after the other.
template <typename Write>
void WriteValues(std::span<const uint8_t> state, bool half, const Write& write) {
  if (!half) return write({reinterpret_cast<const char*>(state.data()), state.size()});
  std::string span;
  const size_t values = state.size() / sizeof(float);
  for (size_t begin = 0; begin < values; begin += kSpanValues) {
    const size_t count = std::min(kSpanValues, values - begin);
    span.resize(count * 2);
    for (size_t i = 0; i < count; ++i) {
      const auto bits =
          static_cast<uint16_t>(ValueBits(state.data() + (begin + i) * sizeof(float), true));
      std::memcpy(span.data() + i * 2, &bits, 2);
    }
    write(span);
  }
}

// Calls write(span) for a byte plane: that byte of all values, one after the other.
template <typename Write>
void WritePlane(std::span<const uint8_t> state, bool half, int plane, const Write& write) {
  const size_t values = state.size() / sizeof(float);
  std::string span;
  for (size_t begin = 0; begin < values; begin += kSpanValues) {
    span.resize(std::min(kSpanValues, values - begin));
    for (size_t i = 0; i < span.size(); ++i) {
      const uint32_t bits = ValueBits(state.data() + (begin + i) * sizeof(float), half);
      span[i] = static_cast<char>(bits >> (8 * plane));
    }
    write(span);
  }
}

struct FreeZstd {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

size_t CheckedZstd(size_t result) {
  PS_CHECK(ZSTD_isError(result) == 0) << ZSTD_getErrorName(result);
  return result;
}

// Appends a frame of spans whose sizes sum up to `size`.
class Compressor {
 public:
  Compressor(size_t size, std::string* out) : context_(ZSTD_createCCtx()), out_(out) {
    PS_CHECK(context_ != nullptr);
    CheckedZstd(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kZstdLevel));
    CheckedZstd(ZSTD_CCtx_setPledgedSrcSize(context_.get(), size));
    buffer_.resize(ZSTD_CStreamOutSize());
  }
  void Add(std::string_view span) {
    ZSTD_inBuffer in = {span.data(), span.size(), 0};
    while (in.pos < in.size) Step(&in, ZSTD_e_continue);
  }
  void Finish() {
    ZSTD_inBuffer in = {nullptr, 0, 0};
    while (Step(&in, ZSTD_e_end) > 0) continue;
  }

 private:
  size_t Step(ZSTD_inBuffer* in, ZSTD_EndDirective end) {
    ZSTD_outBuffer out = {buffer_.data(), buffer_.size(), 0};
    const size_t left = CheckedZstd(ZSTD_compressStream2(context_.get(), &out, in, end));
    out_->append(buffer_.data(), out.pos);
    return left;
  }

  const std::unique_ptr<ZSTD_CCtx, FreeZstd> context_;
  std::string* const out_;
  std::string buffer_;
};

// Calls write(span) for the content of a frame. Returns whether `bytes` is one frame of `size`
// bytes.
template <typename Write>
bool Decompress(std::string_view bytes, size_t size, const Write& write) {
  const std::unique_ptr<ZSTD_DCtx, FreeZstd> context(ZSTD_createDCtx());
  PS_CHECK(context != nullptr);
  // A frame of others may ask for a window of any size.
  CheckedZstd(ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kMaxWindowLog));
  std::string buffer(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  for (size_t found = 0;;) {
    ZSTD_outBuffer out = {buffer.data(), buffer.size(), 0};
    const size_t before = in.pos;
    const size_t left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left) != 0 || out.pos > size - found) return false;
    write(std::string_view(buffer.data(), out.pos));
    found += out.pos;
    if (left == 0) return found == size && in.pos == in.size;
    if (out.pos == 0 && in.pos == before) return false;  // the frame is cut
  }
}

// Collects the values of a state from their encoded bytes, in order.
class ValueReader {
 public:
  // `planes`: the bytes come in byte planes.
  ValueReader(ByteBuffer* values, size_t width, bool planes)
      : out_(values), width_(width), planes_(planes) {}
  void Add(std::string_view span) {
    const size_t values = out_->size() / sizeof(float);
    if (values == 0) return;
    // The two bytes of a bf16 are the upper ones.
    uint8_t* const out = out_->data() + sizeof(float) - width_;
    for (const char c : span) {
      out[value_ * sizeof(float) + byte_] = static_cast<uint8_t>(c);
      size_t& inner = planes_ ? value_ : byte_;
      size_t& outer = planes_ ? byte_ : value_;
      if (++inner < (planes_ ? values : width_)) continue;
      inner = 0;
      ++outer;
    }
  }

 private:
  ByteBuffer* const out_;
  const size_t width_;
  const bool planes_;
  size_t value_ = 0, byte_ = 0;  // of the next byte
};

}  // namespace

std::string_view StateEncodingName(StateEncoding encoding) {
  return kNames[static_cast<size_t>(encoding)];
}

void EncodeState(const std::function<void(const StateWriter& write)>& write_state, size_t size,
                 StateEncoding encoding, std::string* out) {
  PS_CHECK(size % sizeof(float) == 0);
  const size_t width = ValueBytes(encoding), encoded = size / sizeof(float) * width;
  const bool half = width == 2;
  if (!IsCompressed(encoding)) {
    out->reserve(out->size() + encoded);
    write_state([&](std::span<const uint8_t> state) {
      WriteValues(state, half, [&](std::string_view span) { out->append(span); });
    });
    return;
  }
  // The first bytes of all values before the second ones: exponents repeat, mantissas do not.
  Compressor compressor(encoded, out);
  for (int plane = 0; plane < static_cast<int>(width); ++plane) {
    write_state([&](std::span<const uint8_t> state) {
      WritePlane(state, half, plane, [&](std::string_view span) { compressor.Add(span); });
    });
  }
  compressor.Finish();
}

void KeptValues(std::span<const uint8_t> values, StateEncoding encoding,
                const std::function<void(std::string_view)>& write) {
  WriteValues(values, ValueBytes(encoding) == 2, write);
}

Result<ByteBuffer> DecodeState(std::string_view bytes, uint32_t encoding, uint64_t size) {
  if (encoding >= std::size(kNames) || size % sizeof(float) != 0) {
    return DataLoss("snapshot: state: unknown encoding ", encoding, " of ", size, " bytes");
  }
  const auto form = static_cast<StateEncoding>(encoding);
  const size_t values = size / sizeof(float), width = ValueBytes(form);
  const bool compressed = IsCompressed(form);
  if (!compressed && bytes.size() != values * width) {
    return DataLoss("snapshot: state: expected ", values * width, " bytes, found ", bytes.size());
  }
  if (form == StateEncoding::kF32) return CopyOf(bytes);
  // bf16 leaves the lower bytes 0.
  ByteBuffer state = width == 4 ? ByteBuffer(size) : ByteBuffer(size, uint8_t{0});
  ValueReader reader(&state, width, compressed);
  if (!compressed) {
    reader.Add(bytes);
  } else if (!Decompress(bytes, values * width, [&](std::string_view span) { reader.Add(span); })) {
    return DataLoss("snapshot: state: expected ", values * width, " compressed bytes");
  }
  return state;
}

}  // namespace polysketch
