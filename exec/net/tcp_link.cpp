#include "exec/net/tcp_link.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <deque>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>

namespace isobar::exec {

namespace asio = boost::asio;

class TcpLoop {
 public:
  asio::io_context context{1};  // one thread at a time
};

namespace {

using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;

constexpr std::uint32_t frame_mark = 0x4d425349;                // "ISBM"
constexpr std::size_t shortest_striped = std::size_t{1} << 16;  // below, a second connection costs more than it brings
constexpr std::size_t longest_turn = std::size_t{1} << 22;      // what one call of the system may move

constexpr std::size_t no_payload = std::numeric_limits<std::size_t>::max();

static_assert(std::endian::native == std::endian::little, "frames travel as they lie in memory");

/// What the first connection carries before the header.
struct Frame {
  std::uint32_t mark = frame_mark;
  std::uint32_t header = 0;
  std::uint64_t payload = 0;
};

/// Cuts buffers into `count` runs of similar size, in order.
template <typename Buffer, typename Byte>
std::vector<std::vector<Buffer>> stripes_of(std::span<const std::span<Byte>> buffers, std::size_t total,
                                            std::size_t count)
{
  std::vector<std::vector<Buffer>> stripes(count);
  std::size_t stripe = 0;
  std::size_t position = 0;
  for (auto buffer : buffers) {
    while (!buffer.empty()) {
      const auto end = total / count * (stripe + 1) + total % count * (stripe + 1) / count;
      const auto length = std::min(buffer.size(), end - position);
      stripes[stripe].emplace_back(buffer.data(), length);
      buffer = buffer.subspan(length);
      position += length;
      if (position == end) ++stripe;
    }
  }
  return stripes;
}

template <typename Byte>
std::size_t total_of(std::span<const std::span<Byte>> buffers)
{
  std::size_t total = 0;
  for (const auto& buffer : buffers) total += buffer.size();
  return total;
}

/// What TLS says of a connection, beside the system's errors.
class TlsFaults : public boost::system::error_category {
 public:
  TlsFaults() = default;
  TlsFaults(const TlsFaults&) = delete;
  TlsFaults& operator=(const TlsFaults&) = delete;
  virtual ~TlsFaults() = default;
  const char* name() const noexcept override { return "tls"; }
  std::string message(int) const override { return "what came is not what the peer has sent, or no TLS"; }
};
const TlsFaults tls_faults;

/// A connection as asio's functions for streams of bytes take it, encrypted or not.
class Stream {
 public:
  using executor_type = Socket::executor_type;

  Stream(asio::io_context& context, Flow flow)
      // The family matters only where a socket is opened.
      : socket_(context, asio::generic::stream_protocol(AF_UNSPEC, 0), flow.socket.release()), tls_(std::move(flow.tls))
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
      // Short ones together, so that a frame, its header and a short payload are one record.
      from = asio::buffer(record_, asio::buffer_copy(asio::buffer(record_), buffers));
    }
    step(
        [this, from] {
          return tls_->write({static_cast<const std::byte*>(from.data()), from.size()});
        },
        from.size(), std::forward<Handler>(handler));
  }

 private:
  /// The first one that is not empty.
  template <typename Buffer, typename Buffers>
  static Buffer first_of(const Buffers& buffers)
  {
    for (auto at = asio::buffer_sequence_begin(buffers); at != asio::buffer_sequence_end(buffers); ++at) {
      const Buffer buffer(*at);
      if (buffer.size() > 0) return buffer;
    }
    return {};
  }

  /// Tries until TLS has moved something or failed, and waits for the socket in between.
  template <typename Try, typename Handler>
  void step(Try attempt, std::size_t size, Handler handler)
  {
    using Waits = Tls::Progress::Waits;
    error_code error;
    std::size_t bytes = 0;
    if (!socket_.is_open()) {
      error = asio::error::operation_aborted;  // its number may be another file's by now
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

/// Why an operation has failed.
struct Reason {
  Failure::Kind kind;
  std::string text;
};

Reason reason_of(const error_code& error)
{
  const bool gone = error == asio::error::eof || error == asio::error::connection_reset ||
                    error == asio::error::broken_pipe || error == asio::error::connection_aborted;
  if (gone) return {Failure::Kind::PeerClosed, "connection closed by the peer"};
  return {Failure::Kind::Other, error.message()};
}

bool is_hung_up(int number)
{
  pollfd state = {.fd = number, .events = POLLRDHUP, .revents = 0};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace

bool is_closed_by_peer(const Descriptor& connected)
{
  return is_hung_up(connected.number());
}

Descriptor::~Descriptor()
{
  if (is_open()) ::close(number_);
}

std::shared_ptr<TcpLoop> make_tcp_loop()
{
  return std::make_shared<TcpLoop>();
}

class TcpLink::Impl {
 public:
  Impl(const LinkName& name, std::size_t self, const std::string& title, std::vector<Flow> flows,
       std::shared_ptr<TcpLoop> loop);

  // The parts of an operation. Each begins something; `operate` waits for it.
  void begin_send(Bytes header, std::span<const Bytes> payload);
  void begin_frame();
  void begin_header();
  void begin_payload(const Room& room);

  /// Runs `work`; when it fails, closes the links and waits until nothing touches the caller's buffers any more.
  template <typename Work>
  static void operate(std::initializer_list<Impl*> links, Work work);
  /// Until the first link has nothing under way; fails as soon as one of them does.
  static void wait_for(Impl& awaited, std::initializer_list<Impl*> links, Deadline& deadline);
  void receive(const Room& room, std::initializer_list<Impl*> links, Deadline& deadline);

  // The parts of cancelling.
  void refuse() { cancelled_ = true; }
  void shut_down();

  bool is_closed();

  std::shared_ptr<TcpLoop> loop;
  bool sends = false;
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> moves = 0;

 private:
  void begin();
  void close(const Failure& reason);
  void write(std::size_t flow, const std::vector<asio::const_buffer>& buffers, std::size_t before_payload);
  void read(std::size_t flow, const std::vector<asio::mutable_buffer>& buffers, std::size_t before_payload);
  /// What asio asks and tells while and when bytes move over a flow.
  auto watch(std::size_t flow, std::size_t before_payload);
  auto end_of(std::size_t flow, std::size_t before_payload);
  [[noreturn]] void fail(const Reason& reason) const;

  std::string label_;
  std::deque<Stream> flows_;
  std::optional<Failure> unusable_;  ///< why; nothing while it is usable

  // The operation under way.
  Clock::time_point began_;
  std::size_t under_way_ = 0;
  std::optional<Reason> fault_;
  std::optional<std::uint64_t> total_;  ///< of the payload, once it is known
  std::vector<std::uint64_t> moved_;    ///< of the payload, over each flow
  Frame frame_;
  std::vector<std::byte> header_;

  // What another thread may touch.
  std::mutex mutex_;
  std::vector<int> open_;
  std::atomic<bool> cancelled_ = false;
};

TcpLink::Impl::Impl(const LinkName& name, std::size_t self, const std::string& title, std::vector<Flow> flows,
                    std::shared_ptr<TcpLoop> tcp_loop)
    : loop(std::move(tcp_loop)), sends(self == name.from)
{
  ensure(self == name.from || self == name.to, "the end of a link is at one of its ranks");
  ensure(!flows.empty(), "a link has at least one connection");
  label_ = sends ? fmt::format("rank {}: send to rank {} ({})", self, name.to, title)
                 : fmt::format("rank {}: receive from rank {} ({})", self, name.from, title);
  for (auto& flow : flows) {
    const int number = flow.socket.number();
    ::fcntl(number, F_SETFD, FD_CLOEXEC);
    flows_.emplace_back(loop->context, std::move(flow));
    open_.push_back(number);
  }
}

template <typename Work>
void TcpLink::Impl::operate(std::initializer_list<Impl*> links, Work work)
{
  for (auto* link : links) link->begin();
  try {
    work();
  } catch (const std::exception& error) {
    for (auto* link : links) link->close(failure_of(error));
    auto& context = (*links.begin())->loop->context;
    context.restart();
    context.run();
    throw;
  }
}

void TcpLink::Impl::begin()
{
  began_ = Clock::now();
  total_.reset();
  moved_.assign(flows_.size(), 0);
  if (unusable_) {
    throw_failure(
        environment_failure(unusable_->kind, fmt::format("{}: unusable after an error: {}", label_, unusable_->text)));
  }
  if (cancelled_) {
    throw_failure(environment_failure(Failure::Kind::Cancelled, label_ + ": cancelled"));
  }
}

void TcpLink::Impl::wait_for(Impl& awaited, std::initializer_list<Impl*> links, Deadline& deadline)
{
  auto& context = awaited.loop->context;
  while (true) {
    for (const auto* link : links) {
      if (link->fault_) link->fail(*link->fault_);
    }
    if (awaited.under_way_ == 0) return;
    context.restart();  // it stops whenever it has nothing left to do
    if (context.poll_one() > 0) continue;
    throw_if_interrupted();  // only of what has to wait: a last word, which need not, gets out
    // In short waits, since a signal that another thread gets wakes nobody here.
    constexpr Seconds next_look(0.1);
    const auto until = deadline_in(std::min(next_look, deadline.left()));
    if (context.run_one_until(until) == 0 && deadline.left() <= Seconds(0)) {
      awaited.fail({Failure::Kind::DeadlinePassed, "deadline passed"});
    }
  }
}

void TcpLink::Impl::fail(const Reason& failed) const
{
  std::string progress = "no message";
  if (total_) {
    progress = fmt::format("{} of {} B", std::accumulate(moved_.begin(), moved_.end(), std::uint64_t{0}), *total_);
  }
  const Reason reason = cancelled_ ? Reason{Failure::Kind::Cancelled, "cancelled"} : failed;
  throw_failure(environment_failure(
      reason.kind, fmt::format("{}: {} after {}: {}", label_, progress, in_seconds(time_since(began_)), reason.text)));
}

void TcpLink::Impl::close(const Failure& reason)
{
  if (!unusable_) unusable_ = reason;
  const std::scoped_lock lock(mutex_);
  open_.clear();
  for (auto& flow : flows_) flow.close();
}

void TcpLink::Impl::shut_down()
{
  // The system wakes whoever waits on the connection, here and at the other end.
  const std::scoped_lock lock(mutex_);
  for (const int flow : open_) ::shutdown(flow, SHUT_RDWR);
}

bool TcpLink::Impl::is_closed()
{
  const std::scoped_lock lock(mutex_);
  return open_.empty() || std::any_of(open_.begin(), open_.end(), is_hung_up);
}

auto TcpLink::Impl::watch(std::size_t flow, std::size_t before_payload)
{
  return [this, flow, before_payload](const error_code& error, std::size_t bytes) {
    moved_[flow] = bytes - std::min(bytes, before_payload);
    ++moves;
    return error ? 0 : longest_turn;
  };
}

auto TcpLink::Impl::end_of(std::size_t flow, std::size_t before_payload)
{
  return [this, flow, before_payload](const error_code& error, std::size_t bytes) {
    moved_[flow] = bytes - std::min(bytes, before_payload);
    ++moves;
    --under_way_;
    if (error && !fault_) fault_ = reason_of(error);
  };
}

void TcpLink::Impl::write(std::size_t flow, const std::vector<asio::const_buffer>& buffers, std::size_t before_payload)
{
  ++under_way_;
  // The sockets write with MSG_NOSIGNAL, so a peer that is gone is an error and no SIGPIPE.
  asio::async_write(flows_[flow], buffers, watch(flow, before_payload), end_of(flow, before_payload));
}

void TcpLink::Impl::read(std::size_t flow, const std::vector<asio::mutable_buffer>& buffers, std::size_t before_payload)
{
  ++under_way_;
  asio::async_read(flows_[flow], buffers, watch(flow, before_payload), end_of(flow, before_payload));
}

void TcpLink::Impl::begin_send(Bytes header, std::span<const Bytes> payload)
{
  const auto total = total_of(payload);
  total_ = total;
  frame_ = {.mark = frame_mark, .header = static_cast<std::uint32_t>(header.size()), .payload = total};
  const auto stripes = stripes_of<asio::const_buffer>(payload, total, total < shortest_striped ? 1 : flows_.size());
  std::vector<asio::const_buffer> first = {asio::buffer(&frame_, sizeof frame_),
                                           asio::buffer(header.data(), header.size())};
  first.insert(first.end(), stripes[0].begin(), stripes[0].end());
  write(0, first, sizeof frame_ + header.size());
  for (std::size_t flow = 1; flow < stripes.size(); ++flow) write(flow, stripes[flow], 0);
}

void TcpLink::Impl::begin_frame()
{
  read(0, {asio::buffer(&frame_, sizeof frame_)}, no_payload);
}

void TcpLink::Impl::begin_header()
{
  if (frame_.mark != frame_mark) fail({Failure::Kind::Other, "what came is no message"});
  if (frame_.header > longest_header) {
    fail({Failure::Kind::Other,
          fmt::format("a header of {} B came; the longest may have {} B", frame_.header, longest_header)});
  }
  header_.resize(frame_.header);
  read(0, {asio::buffer(header_.data(), header_.size())}, no_payload);
}

void TcpLink::Impl::begin_payload(const Room& room)
{
  const auto buffers = room(header_);
  const auto total = total_of<std::byte>(buffers);
  total_ = frame_.payload;
  if (total != frame_.payload) {
    fail({Failure::Kind::Other,
          fmt::format("a payload of {} B came and there is room for {} B", frame_.payload, total)});
  }
  const auto stripes =
      stripes_of<asio::mutable_buffer, std::byte>(buffers, total, total < shortest_striped ? 1 : flows_.size());
  for (std::size_t flow = 0; flow < stripes.size(); ++flow) read(flow, stripes[flow], 0);
}

void TcpLink::Impl::receive(const Room& room, std::initializer_list<Impl*> links, Deadline& deadline)
{
  begin_frame();
  wait_for(*this, links, deadline);
  begin_header();
  wait_for(*this, links, deadline);
  begin_payload(room);
  wait_for(*this, links, deadline);
}

TcpLink::TcpLink(const LinkName& name, std::size_t self, const std::string& title, std::vector<Flow> flows,
                 std::shared_ptr<TcpLoop> loop)
    : impl_(std::make_unique<Impl>(name, self, title, std::move(flows), std::move(loop)))
{
}

TcpLink::~TcpLink() = default;

void TcpLink::send(Bytes header, std::span<const Bytes> payload, Deadline deadline)
{
  ensure(impl_->sends, "messages are sent on the sending end of a link");
  ensure(header.size() <= longest_header, "a header has at most 1 MiB");
  Impl::operate({impl_.get()}, [&] {
    impl_->begin_send(header, payload);
    Impl::wait_for(*impl_, {impl_.get()}, deadline);
  });
  impl_->sent += total_of(payload);
}

void TcpLink::receive(const Room& room, Deadline deadline)
{
  ensure(!impl_->sends, "messages are received on the receiving end of a link");
  Impl::operate({impl_.get()}, [&] { impl_->receive(room, {impl_.get()}, deadline); });
}

void TcpLink::exchange(TcpLink& out, Bytes header, std::span<const Bytes> payload, TcpLink& in, const Room& room,
                       Deadline deadline)
{
  ensure(out.impl_->loop == in.impl_->loop, "an exchange takes two links of one loop");
  ensure(out.impl_->sends && !in.impl_->sends, "an exchange sends on the first link and receives on the second");
  ensure(header.size() <= longest_header, "a header has at most 1 MiB");
  const auto both = {in.impl_.get(), out.impl_.get()};
  Impl::operate(both, [&] {
    out.impl_->begin_send(header, payload);
    in.impl_->receive(room, both, deadline);
    Impl::wait_for(*out.impl_, both, deadline);
  });
  out.impl_->sent += total_of(payload);
}

void TcpLink::cancel(std::span<TcpLink* const> links)
{
  // All know it before the first peer does, or one would take the peer's closing for the cause.
  for (auto* link : links) link->impl_->refuse();
  for (auto* link : links) link->impl_->shut_down();
}

std::uint64_t TcpLink::bytes_sent() const
{
  return impl_->sent;
}

std::uint64_t TcpLink::moves() const
{
  return impl_->moves;
}

bool TcpLink::is_closed() const
{
  return impl_->is_closed();
}

}  // namespace isobar::exec
