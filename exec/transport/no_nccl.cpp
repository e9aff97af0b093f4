#include "core/errors.hpp"
#include "exec/transport/nccl.hpp"

#include <fmt/format.h>

namespace isobar::exec::nccl {

namespace {

[[noreturn]] void refuse()
{
  throw EnvironmentError("NCCL: built without it; build with CUDA's toolkit and nccl.h");
}

}  // namespace

class Communicator::Impl {};

int version(const std::string& /*library*/)
{
  refuse();
}

Id new_id()
{
  refuse();
}

Communicator::Communicator(const Id& /*id*/, std::size_t /*rank*/, std::size_t /*ranks*/, std::string /*title*/,
                           const std::atomic<bool>& /*cancelled*/, const Deadline& /*deadline*/)
{
  refuse();
}

Communicator::~Communicator() = default;

void Communicator::enqueue_transfer(std::span<const Piece> /*pieces*/, void* /*stream*/, const Deadline& /*deadline*/)
{
  refuse();
}

void Communicator::enqueue_sums(std::span<const Piece> /*pieces*/, Number /*type*/, void* /*stream*/,
                                const Deadline& /*deadline*/)
{
  refuse();
}

void Communicator::enqueue_sums_of_parts(Parts /*parts*/, void* /*stream*/, const Deadline& /*deadline*/)
{
  refuse();
}

void Communicator::enqueue_gather(Parts /*parts*/, void* /*stream*/, const Deadline& /*deadline*/)
{
  refuse();
}

void Communicator::enqueue_exchange(std::span<const Piece> /*outgoing*/, std::span<const Piece> /*incoming*/,
                                    void* /*stream*/, const Deadline& /*deadline*/)
{
  refuse();
}

void Communicator::wait(const std::function<bool()>& /*is_done*/, const Deadline& /*deadline*/)
{
  refuse();
}

}  // namespace isobar::exec::nccl
