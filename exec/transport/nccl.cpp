#include "exec/transport/nccl.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <dlfcn.h>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace isobar::exec::nccl {

namespace {

constexpr int oldest = 21400;  // the first with ncclConfig_t::blocking

/// NCCL's functions, by its own names.
struct Library {
  explicit Library(const std::string& name) : handle(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
  {
    if (handle == nullptr) throw EnvironmentError(fmt::format("NCCL: {}", shown(dlerror(), 300)));
    find("ncclGetVersion", get_version);
    int found = 0;
    get_version(&found);
    if (found < oldest) {
      throw EnvironmentError(fmt::format("NCCL: {} is version {}; {} or later is needed", shown(name, 300),
                                         text_of_version(found), text_of_version(oldest)));
    }
    find("ncclGetUniqueId", get_unique_id);
    find("ncclCommInitRankConfig", comm_init_rank_config);
    find("ncclCommFinalize", comm_finalize);
    find("ncclCommDestroy", comm_destroy);
    find("ncclCommAbort", comm_abort);
    find("ncclCommGetAsyncError", comm_get_async_error);
    find("ncclGetErrorString", get_error_string);
    find("ncclGetLastError", get_last_error);
    find("ncclGroupStart", group_start);
    find("ncclGroupEnd", group_end);
    find("ncclSend", send);
    find("ncclRecv", receive);
    find("ncclAllReduce", all_reduce);
    find("ncclReduce", reduce);
    find("ncclBroadcast", broadcast);
  }

  template <typename Function>
  void find(const char* symbol, Function& function) const
  {
    function = reinterpret_cast<Function>(dlsym(handle, symbol));
    if (function == nullptr) throw EnvironmentError(fmt::format("NCCL: {}", shown(dlerror(), 300)));
  }

  void* handle;  // never closed, since NCCL has threads of its own
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
};

const Library& library()
{
  static const Library loaded(usual_library);
  return loaded;
}

ncclDataType_t in_nccl(Number type)
{
  switch (type) {
    case Number::Float16:
      return ncclFloat16;
    case Number::BFloat16:
      return ncclBfloat16;
    default:
      return ncclFloat32;
  }
}

}  // namespace

int version(const std::string& name)
{
  int found = 0;
  (name == usual_library ? library() : Library(name)).get_version(&found);
  return found;
}

Id new_id()
{
  ncclUniqueId unique{};
  const ncclResult_t result = library().get_unique_id(&unique);
  if (result != ncclSuccess) throw EnvironmentError(fmt::format("NCCL: {}", library().get_error_string(result)));
  Id id{};
  static_assert(sizeof id == sizeof unique);
  std::memcpy(id.data(), &unique, sizeof id);
  return id;
}

class Communicator::Impl {
 public:
  Impl(const Id& id, std::size_t rank, std::size_t ranks, std::string title, const std::atomic<bool>& cancelled,
       const Deadline& deadline)
      : nccl_(library()), rank_(static_cast<int>(rank)), title_(std::move(title)), cancelled_(cancelled)
  {
    ncclUniqueId unique{};
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(nccl_.comm_init_rank_config(&communicator_, static_cast<int>(ranks), unique, rank_, &config));
    until([] { return true; }, deadline);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl()
  {
    if (communicator_ == nullptr) return;
    // The other ranks may be gone.
    constexpr Seconds longest_finalize(5);
    try {
      check(nccl_.comm_finalize(communicator_));
      until([] { return true; }, longest_finalize);
      nccl_.comm_destroy(communicator_);
    } catch (const std::exception&) {
      abort();
    }
  }

  void enqueue_transfer(std::span<const Piece> pieces, void* stream, const Deadline& deadline)
  {
    const auto on_stream = static_cast<cudaStream_t>(stream);
    const int peer = 1 - rank_;
    enqueue(pieces, deadline, [&](const Piece& piece) {
      return rank_ == 0 ? nccl_.send(piece.begin, piece.bytes, ncclUint8, peer, communicator_, on_stream)
                        : nccl_.receive(piece.begin, piece.bytes, ncclUint8, peer, communicator_, on_stream);
    });
  }

  void enqueue_sums(std::span<const Piece> pieces, Number type, void* stream, const Deadline& deadline)
  {
    const auto on_stream = static_cast<cudaStream_t>(stream);
    const std::size_t size = type == Number::Float32 ? 4 : 2;
    enqueue(pieces, deadline, [&](const Piece& piece) {
      return nccl_.all_reduce(piece.begin, piece.begin, piece.bytes / size, in_nccl(type), ncclSum, communicator_,
                              on_stream);
    });
  }

  void enqueue_sums_of_parts(Parts parts, void* stream, const Deadline& deadline)
  {
    const auto on_stream = static_cast<cudaStream_t>(stream);
    enqueue_parts(parts, deadline, [&](const Piece& piece, int owner) {
      return nccl_.reduce(piece.begin, piece.begin, piece.bytes / sizeof(float), ncclFloat, ncclSum, owner,
                          communicator_, on_stream);
    });
  }

  void enqueue_gather(Parts parts, void* stream, const Deadline& deadline)
  {
    const auto on_stream = static_cast<cudaStream_t>(stream);
    enqueue_parts(parts, deadline, [&](const Piece& piece, int owner) {
      return nccl_.broadcast(piece.begin, piece.begin, piece.bytes, ncclUint8, owner, communicator_, on_stream);
    });
  }

  void enqueue_exchange(std::span<const Piece> outgoing, std::span<const Piece> incoming, void* stream,
                        const Deadline& deadline)
  {
    const auto on_stream = static_cast<cudaStream_t>(stream);
    refuse_unless_open();
    check(nccl_.group_start());
    for (int other = 0; other < static_cast<int>(outgoing.size()); ++other) {
      if (other == rank_) continue;
      const auto& [sent, leaves] = outgoing[static_cast<std::size_t>(other)];
      const auto& [received, arrives] = incoming[static_cast<std::size_t>(other)];
      if (leaves > 0) check(nccl_.send(sent, leaves, ncclUint8, other, communicator_, on_stream));
      if (arrives > 0) check(nccl_.receive(received, arrives, ncclUint8, other, communicator_, on_stream));
    }
    check(nccl_.group_end());
    until([] { return true; }, deadline);
  }

  /// Waits until NCCL has completed its calls and `is_done`.
  void until(const std::function<bool()>& is_done, Deadline deadline)
  {
    constexpr std::chrono::microseconds nap(20);
    refuse_unless_open();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      check(nccl_.comm_get_async_error(communicator_, &state));
      check(state);
      if (state == ncclSuccess && is_done()) return;
      if (cancelled_) fail(Failure::Kind::Cancelled, "cancelled");
      if (deadline.left() <= Seconds(0)) fail(Failure::Kind::DeadlinePassed, "deadline passed");
      if (interrupted()) abort();
      throw_if_interrupted();
      std::this_thread::sleep_for(nap);
    }
  }

 private:
  template <typename Call>
  void enqueue(std::span<const Piece> pieces, const Deadline& deadline, Call call)
  {
    refuse_unless_open();
    check(nccl_.group_start());
    for (const auto& piece : pieces) check(call(piece));
    check(nccl_.group_end());
    until([] { return true; }, deadline);
  }

  /// Enqueues a call for each piece of all parts as one group, which NCCL carries out together.
  template <typename Call>
  void enqueue_parts(Parts parts, const Deadline& deadline, Call call)
  {
    refuse_unless_open();
    check(nccl_.group_start());
    for (std::size_t owner = 0; owner < parts.size(); ++owner) {
      for (const auto& piece : parts[owner]) check(call(piece, static_cast<int>(owner)));
    }
    check(nccl_.group_end());
    until([] { return true; }, deadline);
  }

  void check(ncclResult_t result)
  {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const auto why =
        fmt::format("{}: {}", nccl_.get_error_string(result), shown(nccl_.get_last_error(communicator_), 300));
    // NCCL does not name the lost rank; the heartbeat does.
    const bool other_end_failed = result == ncclRemoteError || result == ncclSystemError;
    if (other_end_failed) fail(Failure::Kind::PeerClosed, fmt::format("connection closed by the peer ({})", why));
    fail(Failure::Kind::Other, why);
  }

  void refuse_unless_open() const
  {
    if (communicator_ == nullptr) throw EnvironmentError(title_ + ", by NCCL: has failed before");
  }

  [[noreturn]] void fail(Failure::Kind kind, const std::string& why)
  {
    abort();
    throw_failure(environment_failure(kind, fmt::format("{}, by NCCL: {}", title_, why)));
  }

  void abort()
  {
    if (communicator_ != nullptr) nccl_.comm_abort(std::exchange(communicator_, nullptr));
  }

  const Library& nccl_;
  int rank_;
  std::string title_;
  const std::atomic<bool>& cancelled_;
  ncclComm_t communicator_ = nullptr;
};

Communicator::Communicator(const Id& id, std::size_t rank, std::size_t ranks, std::string title,
                           const std::atomic<bool>& cancelled, const Deadline& deadline)
    : impl_(std::make_unique<Impl>(id, rank, ranks, std::move(title), cancelled, deadline))
{
}

Communicator::~Communicator() = default;

void Communicator::enqueue_transfer(std::span<const Piece> pieces, void* stream, const Deadline& deadline)
{
  impl_->enqueue_transfer(pieces, stream, deadline);
}

void Communicator::enqueue_sums(std::span<const Piece> pieces, Number type, void* stream, const Deadline& deadline)
{
  impl_->enqueue_sums(pieces, type, stream, deadline);
}

void Communicator::enqueue_sums_of_parts(Parts parts, void* stream, const Deadline& deadline)
{
  impl_->enqueue_sums_of_parts(parts, stream, deadline);
}

void Communicator::enqueue_gather(Parts parts, void* stream, const Deadline& deadline)
{
  impl_->enqueue_gather(parts, stream, deadline);
}

void Communicator::enqueue_exchange(std::span<const Piece> outgoing, std::span<const Piece> incoming, void* stream,
                                    const Deadline& deadline)
{
  impl_->enqueue_exchange(outgoing, incoming, stream, deadline);
}

void Communicator::wait(const std::function<bool()>& is_done, const Deadline& deadline)
{
  impl_->until(is_done, deadline);
}

}  // namespace isobar::exec::nccl
