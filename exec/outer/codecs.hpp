#pragma once

#include "core/outer/codec.hpp"

#include <cstddef>
#include <span>
#include <vector>

/// The bytes of encoded values, and bounds of their errors: docs/codecs.md.
namespace isobar::exec {

/// The bytes of `values` encoded values.
std::size_t encoded_bytes(const Codec& codec, std::size_t values);

/// Encodes values; `bytes` has room for exactly their encoding. The bytes are the same on every machine. One thread;
/// allocates for TopK alone.
/// @throws EnvironmentError naming the first value that is not finite; `bytes` then hold a part.
void encode(const Codec& codec, std::span<const float> values, std::span<std::byte> bytes);

/// Decodes values, which are finite and the same on every machine. Bytes may be untrusted.
/// @throws EnvironmentError for bytes that are not an encoding of as many values; `values` then hold a part.
void decode(const Codec& codec, std::span<const std::byte> bytes, std::span<float> values);

/// Keeps what an encoding loses, and adds it to the next values: e <- decay e + x, send Q(e), e <- e - sent. With a
/// decay of 1, all that was sent and the residual are the sum of all values, whatever the codec (Seide et al. 2014).
class ErrorFeedback {
 public:
  /// `residual`: zeros at the begin of a run.
  ErrorFeedback(const Codec& codec, std::vector<float> residual, float decay = 1);

  /// Encodes the residual and `values`, of which there are as many.
  /// @throws EnvironmentError as the function `encode` does; the residual is then of no use.
  void encode(std::span<const float> values, std::span<std::byte> bytes);

  /// What is still to be sent, such as for a checkpoint.
  std::span<const float> residual() const { return residual_; }

 private:
  Codec codec_;
  std::vector<float> residual_;
  std::vector<float> sent_;
  float decay_;
};

}  // namespace isobar::exec
