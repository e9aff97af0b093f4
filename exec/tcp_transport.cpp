#include "exec/tcp_transport.hpp"

#include "exec/device.hpp"
#include "exec/message_header.hpp"
#include "exec/transfer_waits.hpp"

#include <torch/torch.h>

#include <set>
#include <utility>

namespace isobar::exec {

namespace {

class TcpTransport : public Transport {
 public:
  TcpTransport(std::size_t rank, TcpWorld& world, const Program& program, const TimeLimits& limits, bool for_gpu)
      : rank_(rank), world_(&world), waits_(program, rank, limits), for_gpu_(for_gpu)
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
    waits_.of(instruction, [&](Seconds deadline) {
      world_->link(link_of(instruction, rank_)).send(std::as_bytes(std::span(header)), payload, deadline);
    });
  }

  Message receive(const Instruction& instruction) override
  {
    Message message;
    const auto room = [&](TcpLink::Bytes header) {
      message = room_for(header, for_gpu_ ? Room::PinnedMemory : Room::Memory);
      std::vector<std::span<std::byte>> buffers;
      for (const auto& tensor : message.tensors) {
        buffers.emplace_back(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
      }
      return buffers;
    };
    waits_.of(instruction,
              [&](Seconds deadline) { world_->link(link_of(instruction, rank_)).receive(room, deadline); });
    return message;
  }

  void all_reduce_sum(std::span<double> values) override
  {
    waits_.of_sum([&](Seconds deadline) { world_->all_reduce_sum(values, deadline); });
  }
  void cancel() noexcept override { world_->cancel(); }

 private:
  std::size_t rank_;
  TcpWorld* world_;
  TransferWaits waits_;
  bool for_gpu_;
};

}  // namespace

std::vector<LinkName> links_of(const Program& program)
{
  std::set<LinkName> links;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (const Lane lane : {Lane::SendActivation, Lane::SendGradient}) {
      for (std::uint64_t i = 0; i < program.length(rank, lane); ++i) {
        links.insert(link_of(program.at(rank, lane, i), rank));
      }
    }
    // To a data server, which gets nothing else: what becomes of the step.
    const bool is_data_server = program.length(rank, Lane::Compute) == 0;
    if (!is_data_server) continue;
    Instruction orders;
    orders.lane = Lane::ReceiveGradient;
    links.insert(link_of(orders, rank));
  }
  return {links.begin(), links.end()};
}

std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, const Program& program,
                                         const TimeLimits& limits, bool for_gpu)
{
  return std::make_unique<TcpTransport>(rank, world, program, limits, for_gpu);
}

}  // namespace isobar::exec
