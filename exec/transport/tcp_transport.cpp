#include "exec/transport/tcp_transport.hpp"

#include "core/errors.hpp"
#include "core/spmd/reform_time.hpp"
#include "exec/device/device.hpp"
#include "exec/device/stream.hpp"
#include "exec/transport/message_header.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace isobar::exec {

namespace {

template <typename Value>
TcpWorld::Values values_of_type(const Tensors& tensors)
{
  std::vector<std::span<Value>> pieces;
  for (const auto& tensor : tensors) {
    ensure(tensor.is_contiguous(), "tensors of a collective are contiguous");
    pieces.emplace_back(tensor.mutable_data_ptr<Value>(), static_cast<std::size_t>(tensor.numel()));
  }
  return TcpWorld::values_of(pieces);
}

/// The values of tensors on the CPU, all of one type.
TcpWorld::Values values_of(const Tensors& tensors)
{
  switch (tensors.front().scalar_type()) {
    case at::kDouble:
      return values_of_type<double>(tensors);
    case at::kBFloat16:
      return values_of_type<at::BFloat16>(tensors);
    case at::kHalf:
      return values_of_type<at::Half>(tensors);
    default:
      return values_of_type<float>(tensors);
  }
}

class TcpTransport : public Transport {
 public:
  TcpTransport(TcpWorld& world, const Program& program, TransferWaits waits, bool for_gpu)
      : world_(&world), program_(&program), waits_(std::move(waits)), for_gpu_(for_gpu)
  {
  }

  void send(std::size_t channel, const Instruction& instruction, const Message& message) override
  {
    const Tensors kept = on_cpu(message.tensors);  // alive until they are sent
    std::vector<TcpLink::Bytes> payload;
    for (const auto& tensor : kept) {
      payload.emplace_back(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    const auto header = header_of(message);
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).send(std::as_bytes(std::span(header)), payload, deadline);
    });
  }

  Message receive(std::size_t channel, const Instruction& instruction) override
  {
    Message message;
    const auto allocate = [&](TcpLink::Bytes header) {
      const TensorMemory memory = for_gpu_ ? TensorMemory::Pinned : TensorMemory::Pageable;
      message = allocate_message(header, memory, size_limit(instruction));
      std::vector<std::span<std::byte>> buffers;
      for (const auto& tensor : message.tensors) {
        buffers.emplace_back(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
      }
      return buffers;
    };
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).receive(allocate, deadline);
    });
    return message;
  }

  void collective(std::size_t channel, const Instruction& instruction, const Tensors& tensors) override
  {
    if (tensors.empty()) return;
    const bool is_on_gpu = !tensors.front().is_cpu();
    const Tensors here = is_on_gpu ? on_cpu(tensors) : tensors;
    const TcpWorld::Values values = values_of(here);
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->collective(instruction.opcode, static_cast<std::uint32_t>(channel), values, deadline);
    });
    if (is_on_gpu) copy_back(here, tensors);
  }

  void exchange(std::size_t channel, const Instruction& instruction, const Tensors& outgoing,
                const Tensors& incoming) override
  {
    const auto memory_of = [](const at::Tensor& tensor) {
      ensure(tensor.is_contiguous(), "tensors of an exchange are contiguous");
      return std::span(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
    };
    const bool is_on_gpu = !incoming.front().is_cpu();
    const Tensors leaving = on_cpu(outgoing);  // alive until they are sent
    const Tensors here = is_on_gpu ? on_cpu(incoming) : incoming;
    std::vector<TcpLink::Bytes> sent;
    std::vector<std::span<std::byte>> received;
    for (const auto& tensor : leaving) sent.emplace_back(memory_of(tensor));
    for (const auto& tensor : here) received.push_back(memory_of(tensor));
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->exchange(static_cast<std::uint32_t>(channel), sent, received, deadline);
    });
    if (is_on_gpu) copy_back(here, incoming);
  }
  void cancel() noexcept override { world_->cancel(); }

 private:
  /// Copies what is on the CPU to tensors on a GPU; complete on return.
  static void copy_back(const Tensors& here, const Tensors& on_gpu)
  {
    const at::NoGradGuard no_graph;
    for (std::size_t i = 0; i < here.size(); ++i) on_gpu[i].copy_(here[i], /*non_blocking=*/true);
    event_of_this_thread(on_gpu.front().device().str()).wait();
  }

  TcpWorld* world_;
  const Program* program_;
  TransferWaits waits_;
  bool for_gpu_;
};

bool is_of_transfers(const Program& program, const Channel& channel)
{
  return is_transfer(first_instruction_of(program, channel).opcode);
}

bool carries_reforms(const Program& program, const Channel& channel)
{
  const auto [rank, number] = channel.ends.front();
  const Lane& lane = program.lanes(rank).at(number);
  return lane.name == spmd::reform_lane || (lane.role && is_exchange(*lane.role));
}

}  // namespace

Instruction first_instruction_of(const Program& program, const Channel& channel)
{
  const auto [rank, lane] = channel.ends.front();
  ensure(program.length(rank, lane) > 0, "a channel that carries nothing");
  return program.at(rank, lane, 0);
}

LinkName link_of(const Program& program, std::size_t channel)
{
  const auto& ends = program.channels().at(channel).ends;
  ensure(ends.size() == 2, "a transfer has two ends");
  return {ends.front().rank, ends.back().rank, static_cast<std::uint32_t>(channel)};
}

std::vector<LinkName> links_of(const Program& program)
{
  std::vector<LinkName> links;
  for (std::size_t i = 0; i < program.channels().size(); ++i) {
    if (is_of_transfers(program, program.channels()[i])) links.push_back(link_of(program, i));
  }
  return links;
}

std::vector<RankGroup> groups_of(const Program& program)
{
  std::vector<RankGroup> groups;
  for (std::size_t i = 0; i < program.channels().size(); ++i) {
    const Channel& channel = program.channels()[i];
    if (is_of_transfers(program, channel)) continue;
    RankGroup group;
    group.channel = static_cast<std::uint32_t>(i);
    group.algorithm = channel.algorithm;
    group.sites = channel.sites;
    group.has_little_data = first_instruction_of(program, channel).payload == Payload::GradientFacts;
    group.exchanges = carries_reforms(program, channel);
    for (const End& end : channel.ends) group.ranks.push_back(end.rank);
    groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<std::size_t> same_channels(const Program& program, const Program& training)
{
  using Facts = std::tuple<Opcode, Payload, std::uint32_t, std::string, std::vector<std::size_t>>;
  const auto facts_of = [](const Program& of, const Channel& channel) {
    std::vector<std::size_t> ranks;
    for (const End& end : channel.ends) ranks.push_back(end.rank);
    const Instruction first = first_instruction_of(of, channel);
    const auto& [rank, lane] = channel.ends.front();
    const Lane& own = of.lanes(rank).at(lane);
    // Of a role, each exchange has a lane of its own.
    return Facts(first.opcode, first.payload, first.stage, own.role ? own.name : "", std::move(ranks));
  };
  std::map<Facts, std::size_t> index;  // of channels of the training
  for (std::size_t i = 0; i < training.channels().size(); ++i) {
    index.emplace(facts_of(training, training.channels()[i]), i);
  }
  std::vector<std::size_t> same;
  for (const Channel& channel : program.channels()) {
    const auto found = index.find(facts_of(program, channel));
    ensure(found != index.end(), "an evaluation uses channels of the training");
    same.push_back(found->second);
  }
  return same;
}

std::unique_ptr<Transport> tcp_transport(TcpWorld& world, const Program& program, TransferWaits waits, bool for_gpu)
{
  return std::make_unique<TcpTransport>(world, program, std::move(waits), for_gpu);
}

}  // namespace isobar::exec
