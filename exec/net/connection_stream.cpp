#include "exec/net/connection_stream.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <sys/socket.h>
#include <array>
#include <utility>

namespace isobar::exec {

namespace asio = boost::asio;
using boost::system::error_code;

struct TcpLoop::Context {
  asio::io_context io{1};  // one thread at a time
};

namespace {

using Socket = asio::generic::stream_protocol::socket;

constexpr std::size_t longest_turn = std::size_t{1} << 22;  // bytes that one system call may move

/// Errors of TLS, in addition to the system's.
class TlsFaults : public boost::system::error_category {
 public:
  TlsFaults() = default;
  TlsFaults(const TlsFaults&) = delete;
  TlsFaults& operator=(const TlsFaults&) = delete;
  virtual ~TlsFaults() = default;
  const char* name() const noexcept override { return "tls"; }
  std::string message(int) const override { return "received bytes that are not the peer's, or not TLS"; }
};
const TlsFaults tls_faults;

std::optional<StreamFault> fault_of(const error_code& error)
{
  if (!error) return std::nullopt;
  const bool is_closed = error == asio::error::eof || error == asio::error::connection_reset ||
                         error == asio::error::broken_pipe || error == asio::error::connection_aborted;
  if (is_closed) return StreamFault{Failure::Kind::PeerClosed, "connection closed by the peer"};
  return StreamFault{Failure::Kind::Other, error.message()};
}

template <typename Buffer, typename Byte>
std::vector<Buffer> asio_buffers(const std::vector<std::span<Byte>>& spans)
{
  std::vector<Buffer> buffers;
  buffers.reserve(spans.size());
  for (const auto& bytes : spans) buffers.emplace_back(bytes.data(), bytes.size());
  return buffers;
}

/// Completion condition of asio's transfers, which asks for the size of the next turn.
auto completion_condition(const ConnectionStream::OnProgress& on_progress)
{
  return [on_progress](const error_code& error, std::size_t bytes) {
    on_progress(bytes);
    return error ? 0 : longest_turn;
  };
}

auto completion_handler(ConnectionStream::OnProgress on_progress, ConnectionStream::OnEnd on_end)
{
  return
      [on_progress = std::move(on_progress), on_end = std::move(on_end)](const error_code& error, std::size_t bytes) {
        on_progress(bytes);
        on_end(fault_of(error));
      };
}

}  // namespace

/// A connection in the form of asio's byte streams, encrypted or not.
class ConnectionStream::Impl {
 public:
  using executor_type = Socket::executor_type;

  Impl(asio::io_context& context, Connection connection)
      // The family matters only where a socket is opened.
      : socket_(context, asio::generic::stream_protocol(AF_UNSPEC, 0), connection.socket.release()),
        tls_(std::move(connection.tls))
  {
  }

  executor_type get_executor() { return socket_.get_executor(); }
  void close()
  {
    error_code ignored;
    socket_.close(ignored);
  }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler)
  {
    if (!tls_) return socket_.async_read_some(buffers, std::forward<Handler>(handler));
    const auto into = first_of<asio::mutable_buffer>(buffers);
    step(
        [this, into] {
          return tls_->read({static_cast<std::byte*>(into.data()), into.size()});
        },
        into.size(), std::forward<Handler>(handler));
  }

  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler)
  {
    if (!tls_) return socket_.async_write_some(buffers, std::forward<Handler>(handler));
    auto from = first_of<asio::const_buffer>(buffers);
    if (from.size() < record_.size()) {
      // Short buffers are joined, so that a frame, its header and a short payload are one record.
      from = asio::buffer(record_, asio::buffer_copy(asio::buffer(record_), buffers));
    }
    step(
        [this, from] {
          return tls_->write({static_cast<const std::byte*>(from.data()), from.size()});
        },
        from.size(), std::forward<Handler>(handler));
  }

 private:
  /// The first buffer that is not empty.
  template <typename Buffer, typename Buffers>
  static Buffer first_of(const Buffers& buffers)
  {
    for (auto at = asio::buffer_sequence_begin(buffers); at != asio::buffer_sequence_end(buffers); ++at) {
      const Buffer buffer(*at);
      if (buffer.size() > 0) return buffer;
    }
    return {};
  }

  /// Repeats `attempt` until TLS has moved bytes or failed, and waits for the socket in between.
  template <typename Attempt, typename Handler>
  void step(Attempt attempt, std::size_t size, Handler handler)
  {
    using Waits = Tls::Progress::Waits;
    error_code error;
    std::size_t bytes = 0;
    if (!socket_.is_open()) {
      error = asio::error::operation_aborted;  // another file may have its number by now
    } else if (size > 0) {
      const auto progress = attempt();
      if (progress.waits != Waits::No) {
        socket_.async_wait(progress.waits == Waits::UntilReadable ? Socket::wait_read : Socket::wait_write,
                           [this, attempt, size, handler = std::move(handler)](const error_code& failed) mutable {
                             if (failed) return handler(failed, std::size_t{0});
                             step(attempt, size, std::move(handler));
                           });
        return;
      }
      bytes = progress.bytes;
      if (progress.error != 0) error.assign(progress.error, boost::system::system_category());
      if (!progress.fault.empty()) error.assign(1, tls_faults);
    }
    asio::post(get_executor(), [handler = std::move(handler), error, bytes]() mutable { handler(error, bytes); });
  }

  Socket socket_;
  std::unique_ptr<Tls> tls_;
  std::array<std::byte, Tls::longest_record> record_ = {};
};

TcpLoop::TcpLoop() : context_(std::make_unique<Context>()) {}

TcpLoop::~TcpLoop() = default;

bool TcpLoop::poll()
{
  context_->io.restart();  // it stops whenever it has nothing left to do
  return context_->io.poll_one() > 0;
}

bool TcpLoop::wait_until(Clock::time_point end)
{
  return context_->io.run_one_until(end) > 0;
}

void TcpLoop::drain()
{
  context_->io.restart();
  context_->io.run();
}

ConnectionStream::ConnectionStream(TcpLoop& loop, Connection connection)
    : impl_(std::make_unique<Impl>(loop.context_->io, std::move(connection)))
{
}

ConnectionStream::~ConnectionStream() = default;

void ConnectionStream::write(const std::vector<std::span<const std::byte>>& buffers, OnProgress on_progress,
                             OnEnd on_end)
{
  // asio's sockets write with MSG_NOSIGNAL.
  auto condition = completion_condition(on_progress);
  asio::async_write(*impl_, asio_buffers<asio::const_buffer>(buffers), std::move(condition),
                    completion_handler(std::move(on_progress), std::move(on_end)));
}

void ConnectionStream::read(const std::vector<std::span<std::byte>>& buffers, OnProgress on_progress, OnEnd on_end)
{
  auto condition = completion_condition(on_progress);
  asio::async_read(*impl_, asio_buffers<asio::mutable_buffer>(buffers), std::move(condition),
                   completion_handler(std::move(on_progress), std::move(on_end)));
}

void ConnectionStream::close()
{
  impl_->close();
}

}  // namespace isobar::exec
