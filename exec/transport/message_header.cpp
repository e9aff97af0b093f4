#include "exec/transport/message_header.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <numeric>

namespace isobar::exec {

namespace {

/// Decodes a header. Peers are authenticated, but may be faulty.
class HeaderReader {
 public:
  explicit HeaderReader(TcpLink::Bytes bytes) : words_(bytes.size() / sizeof(std::int64_t))
  {
    if (bytes.size() % sizeof(std::int64_t) != 0) refuse();
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  }

  bool at_end() const { return next_ == words_.size(); }
  std::int64_t word(std::int64_t highest)
  {
    if (at_end() || words_[next_] < 0 || words_[next_] > highest) refuse();
    return words_[next_++];
  }

 private:
  [[noreturn]] static void refuse() { throw EnvironmentError("a message has a malformed header"); }

  std::vector<std::int64_t> words_;
  std::size_t next_ = 0;
};

at::TensorOptions options_of(TensorMemory memory)
{
  // Without an index: the current device, which the stream of the lane has set.
  if (memory == TensorMemory::Gpu) return at::TensorOptions(at::kCUDA);
  return at::TensorOptions().pinned_memory(memory == TensorMemory::Pinned);
}

}  // namespace

std::vector<std::int64_t> header_of(const Message& message)
{
  std::vector<std::int64_t> header;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const auto& tensor = message.tensors[i];
    header.insert(header.end(), {static_cast<std::int64_t>(tensor.scalar_type()),
                                 static_cast<std::int64_t>(message.differentiable[i]), tensor.dim()});
    header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return header;
}

Bytes size_limit(const Instruction& transfer)
{
  return 4 * transfer.size + Bytes(0x1p20);
}

Message allocate_message(TcpLink::Bytes header, TensorMemory memory, Bytes most)
{
  constexpr std::int64_t most_dimensions = 16;
  constexpr std::int64_t longest = std::int64_t{1} << 40;
  HeaderReader reader(header);
  Message message;
  Bytes all;
  while (!reader.at_end()) {
    const auto type = static_cast<at::ScalarType>(reader.word(static_cast<std::int64_t>(at::ScalarType::BFloat16)));
    message.differentiable.push_back(reader.word(1) == 1);
    std::vector<std::int64_t> shape(static_cast<std::size_t>(reader.word(most_dimensions)));
    for (auto& length : shape) length = reader.word(longest);
    all += std::accumulate(shape.begin(), shape.end(), Bytes(static_cast<double>(c10::elementSize(type))),
                           [](Bytes bytes, std::int64_t length) { return static_cast<double>(length) * bytes; });
    if (all > most) {
      throw EnvironmentError(
          fmt::format("a message of {} or more; at most {} is expected", text_of(all), text_of(most)));
    }
    message.tensors.push_back(at::empty(shape, options_of(memory).dtype(type)));
  }
  return message;
}

}  // namespace isobar::exec
