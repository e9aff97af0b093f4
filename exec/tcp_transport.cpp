#include "exec/tcp_transport.hpp"

#include "core/errors.hpp"
#include "exec/device.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <cstring>
#include <set>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::uint32_t activations = 0;
constexpr std::uint32_t gradients = 1;

std::uint32_t channel_of(Lane lane)
{
  return lane == Lane::SendActivation || lane == Lane::ReceiveActivation ? activations : gradients;
}

/// A message's header: the orders, then for each tensor its type, whether it is differentiable, and its shape, as 64-bit
/// integers of the machine, which all ranks share.
std::vector<std::int64_t> header_of(const Message& message)
{
  std::vector<std::int64_t> header = {message.orders.checkpoint ? 1 : 0, message.orders.end ? 1 : 0};
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    const auto& tensor = message.tensors[i];
    header.insert(header.end(), {static_cast<std::int64_t>(tensor.scalar_type()),
                                 static_cast<std::int64_t>(message.differentiable[i]), tensor.dim()});
    header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return header;
}

/// Takes a header apart; a peer of ours writes it, but a peer can be broken.
class HeaderReader {
 public:
  explicit HeaderReader(TcpLink::Bytes bytes) : words_(bytes.size() / sizeof(std::int64_t))
  {
    if (bytes.size() % sizeof(std::int64_t) != 0) refuse();
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }

  bool at_end() const { return next_ == words_.size(); }
  std::int64_t word(std::int64_t highest)
  {
    if (at_end() || words_[next_] < 0 || words_[next_] > highest) refuse();
    return words_[next_++];
  }

 private:
  [[noreturn]] static void refuse() { throw EnvironmentError("a message whose header makes no sense"); }

  std::vector<std::int64_t> words_;
  std::size_t next_ = 0;
};

/// Tensors as a header describes them, to be filled.
Message room_for(TcpLink::Bytes bytes, bool for_gpu)
{
  constexpr std::int64_t most_dimensions = 16;
  constexpr std::int64_t longest = std::int64_t{1} << 40;
  HeaderReader header(bytes);
  Message message;
  message.orders.checkpoint = header.word(1) == 1;
  message.orders.end = header.word(1) == 1;
  while (!header.at_end()) {
    const auto type = static_cast<at::ScalarType>(header.word(static_cast<std::int64_t>(at::ScalarType::BFloat16)));
    message.differentiable.push_back(header.word(1) == 1);
    std::vector<std::int64_t> shape(static_cast<std::size_t>(header.word(most_dimensions)));
    for (auto& length : shape) length = header.word(longest);
    message.tensors.push_back(at::empty(shape, at::TensorOptions(type).pinned_memory(for_gpu)));
  }
  return message;
}

class TcpTransport : public Transport {
 public:
  TcpTransport(std::size_t rank, TcpWorld& world, Seconds deadline, bool for_gpu)
      : rank_(rank), world_(&world), deadline_(deadline), for_gpu_(for_gpu)
  {
  }

  void send(const Instruction& instruction, const Message& message) override
  {
    const Tensors kept = on_cpu(message.tensors);  // until they are sent
    std::vector<TcpLink::Bytes> payload;
    for (const auto& tensor : kept) {
      payload.emplace_back(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    const auto header = header_of(message);
    explained(instruction, [&] {
      world_->link({rank_, instruction.peer, channel_of(instruction.lane)})
          .send(std::as_bytes(std::span(header)), payload, deadline_);
    });
  }

  Message receive(const Instruction& instruction) override
  {
    Message message;
    const auto room = [&](TcpLink::Bytes header) {
      message = room_for(header, for_gpu_);
      std::vector<std::span<std::byte>> buffers;
      for (const auto& tensor : message.tensors) {
        buffers.emplace_back(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
      }
      return buffers;
    };
    explained(instruction, [&] {
      world_->link({instruction.peer, rank_, channel_of(instruction.lane)}).receive(room, deadline_);
    });
    return message;
  }

  void all_reduce_sum(std::span<double> values) override { world_->all_reduce_sum(values, deadline_); }
  void cancel() noexcept override { world_->cancel(); }

 private:
  /// Says of a failed transfer what it was to bring.
  template <typename Transfer>
  void explained(const Instruction& instruction, Transfer transfer)
  {
    try {
      transfer();
    } catch (const EnvironmentError& error) {
      throw EnvironmentError(fmt::format("{} (stage {}, {} of micro-batch {})", error.what(), instruction.stage,
                                         name_of(instruction.lane), instruction.microbatch));
    }
  }

  std::size_t rank_;
  TcpWorld* world_;
  Seconds deadline_;
  bool for_gpu_;
};

}  // namespace

std::vector<LinkName> links_of(const Program& program)
{
  std::set<LinkName> links;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (const Lane lane : {Lane::SendActivation, Lane::SendGradient}) {
      for (std::uint64_t i = 0; i < program.length(rank, lane); ++i) {
        links.insert({rank, program.at(rank, lane, i).peer, channel_of(lane)});
      }
    }
    // To a data server, which gets nothing else: what becomes of the step.
    const bool is_data_server = program.length(rank, Lane::Compute) == 0;
    if (is_data_server) links.insert({0, rank, gradients});
  }
  return {links.begin(), links.end()};
}

std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, Seconds deadline, bool for_gpu)
{
  return std::make_unique<TcpTransport>(rank, world, deadline, for_gpu);
}

}  // namespace isobar::exec
