#include "core/errors.hpp"
#include "exec/run/nccl.hpp"

#include <fmt/format.h>

namespace isobar::exec::nccl {

namespace {

[[noreturn]] void refuse()
{
  throw EnvironmentError("NCCL: built without it; build with CUDA's toolkit and nccl.h");
}

}  // namespace

class Pair::Impl {};

int version(const std::string& /*library*/)
{
  refuse();
}

Id new_id()
{
  refuse();
}

Pair::Pair(const Id& /*id*/, End /*end*/, std::string /*title*/, const std::atomic<bool>& /*cancelled*/,
           Deadline /*deadline*/)
{
  refuse();
}

Pair::~Pair() = default;

void Pair::enqueue(std::span<const Piece> /*pieces*/, void* /*stream*/, Deadline /*deadline*/)
{
  refuse();
}

void Pair::wait(const std::function<bool()>& /*is_done*/, Deadline /*deadline*/)
{
  refuse();
}

}  // namespace isobar::exec::nccl
