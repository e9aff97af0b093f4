#pragma once

#include "exec/device/message.hpp"
#include "exec/device/stream.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

/// Tensors of OperatorPasses. Internal to exec/spmd.
namespace isobar::exec {

/// A tensor of a micro-batch, as its operator makes it or reformed.
struct TensorKey {
  std::uint64_t step = 0;
  std::uint64_t microbatch = 0;  ///< 0 for parameters
  std::size_t tensor = 0;
  bool is_reformed = false;

  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

/// Tensors that the lanes of a rank leave for each other. Thread-safe.
class TensorStore {
 public:
  void put(const TensorKey& key, const at::Tensor& tensor, Stream& stream);
  /// Undefined if there is none. The stream waits for it.
  at::Tensor find(const TensorKey& key, Stream& stream) const;
  at::Tensor take(const TensorKey& key, Stream& stream);
  void erase(const TensorKey& key);

 private:
  mutable std::mutex mutex_;
  std::map<TensorKey, Message> messages_;
};

}  // namespace isobar::exec
