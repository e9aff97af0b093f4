#include "exec/run/tcp_transport.hpp"

#include "exec/model/device.hpp"
#include "exec/run/message_header.hpp"

#include <torch/torch.h>

#include <set>
#include <utility>

namespace isobar::exec {

namespace {

class TcpTransport : public Transport {
 public:
  TcpTransport(std::size_t rank, TcpWorld& world, TransferWaits waits, bool for_gpu)
      : rank_(rank), world_(&world), waits_(std::move(waits)), for_gpu_(for_gpu)
  {
  }

  void send(const Instruction& instruction, const Message& message) override
  {
    const Tensors kept = on_cpu(message.tensors);  // alive until they are sent
    std::vector<TcpLink::Bytes> payload;
    for (const auto& tensor : kept) {
      payload.emplace_back(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    const auto header = header_of(message);
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(instruction, rank_)).send(std::as_bytes(std::span(header)), payload, deadline);
    });
  }

  Message receive(const Instruction& instruction) override
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
      world_->link(link_of(instruction, rank_)).receive(allocate, deadline);
    });
    return message;
  }

  void all_reduce_sum(std::span<double> values) override
  {
    waits_.all_reduce([&](const Deadline& deadline) { world_->all_reduce_sum(values, deadline); });
  }
  void cancel() noexcept override { world_->cancel(); }

 private:
  std::size_t rank_;
  TcpWorld* world_;
  TransferWaits waits_;
  bool for_gpu_;
};

}  // namespace

std::vector<LinkName> links_of(const Program& program, std::size_t rank)
{
  std::set<LinkName> links;
  for (const Lane lane : all_lanes) {
    if (lane == Lane::Compute) continue;
    for (std::uint64_t i = 0; i < program.length(rank, lane); ++i)
      links.insert(link_of(program.at(rank, lane, i), rank));
  }
  // The step control goes from the first stage to the data server.
  const std::size_t last = program.ranks() - 1;
  const bool has_data_server = program.length(last, Lane::Compute) == 0;
  if (has_data_server && (rank == 0 || rank == last)) {
    Instruction control;
    control.lane = Lane::ReceiveGradient;
    links.insert(link_of(control, last));
  }
  return {links.begin(), links.end()};
}

std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, TransferWaits waits, bool for_gpu)
{
  return std::make_unique<TcpTransport>(rank, world, std::move(waits), for_gpu);
}

}  // namespace isobar::exec
