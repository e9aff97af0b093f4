#include "exec/links/tcp_link.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/links/link_connections.hpp"
#include "exec/links/message_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <optional>
#include <utility>

namespace isobar::exec {

std::shared_ptr<TcpLoop> make_tcp_loop()
{
  return std::make_shared<TcpLoop>();
}

class TcpLink::Impl {
 public:
  Impl(const LinkName& name, std::size_t self, const std::string& title, std::vector<Connection> connections,
       std::shared_ptr<TcpLoop> loop);

  /// Begins to send a message; `wait_for` waits until it is sent.
  void begin_send(Bytes header, std::span<const Bytes> payload);
  void receive(const Room& room, std::initializer_list<Impl*> links, Deadline& deadline);

  /// Runs `work`. When it fails, closes the links and waits until no transfer uses the caller's buffers any more.
  template <typename Work>
  static void operate(std::initializer_list<Impl*> links, Work work);
  /// Waits until the awaited link has no transfer under way. Throws as soon as a transfer of any link fails.
  static void wait_for(Impl& awaited, std::initializer_list<Impl*> links, Deadline& deadline);

  /// Makes operations fail with "cancelled" once they notice. Callable from any thread.
  void mark_cancelled() { cancelled_ = true; }

  LinkConnections& connections() { return connections_; }

  std::shared_ptr<TcpLoop> loop;
  bool sends = false;
  std::atomic<std::uint64_t> sent = 0;

 private:
  void begin();
  void begin_frame();
  void begin_header();
  void begin_payload(const Room& room);
  void close(const Failure& reason);
  [[noreturn]] void fail(const StreamFault& fault) const;

  std::string label_;
  LinkConnections connections_;
  std::optional<Failure> unusable_;  ///< why; nullopt while the link is usable
  std::atomic<bool> cancelled_ = false;

  // The message under way.
  Clock::time_point began_;
  std::optional<std::uint64_t> total_;  ///< payload bytes, once known
  Frame frame_;
  std::vector<std::byte> header_;
};

TcpLink::Impl::Impl(const LinkName& name, std::size_t self, const std::string& title,
                    std::vector<Connection> connections, std::shared_ptr<TcpLoop> tcp_loop)
    : loop(std::move(tcp_loop)), sends(self == name.from), connections_(std::move(connections), *loop)
{
  ensure(self == name.from || self == name.to, "the end of a link is at one of its ranks");
  ensure(connections_.size() > 0, "a link has at least one connection");
  label_ = sends ? fmt::format("rank {}: send to rank {} ({})", self, name.to, title)
                 : fmt::format("rank {}: receive from rank {} ({})", self, name.from, title);
}

template <typename Work>
void TcpLink::Impl::operate(std::initializer_list<Impl*> links, Work work)
{
  for (auto* link : links) link->begin();
  try {
    work();
  } catch (const std::exception& error) {
    for (auto* link : links) link->close(failure_of(error));
    (*links.begin())->loop->drain();
    throw;
  }
}

void TcpLink::Impl::begin()
{
  began_ = Clock::now();
  total_.reset();
  connections_.begin_message();
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
  while (true) {
    for (const auto* link : links) {
      if (const auto& fault = link->connections_.fault()) link->fail(*fault);
    }
    if (!awaited.connections_.is_busy()) return;
    if (awaited.loop->poll()) continue;
    throw_if_interrupted();  // only before a wait: a last message that need not wait is still sent
    // In short waits, because a signal that another thread receives does not wake this one.
    constexpr Seconds next_look(0.1);
    const auto until = deadline_in(std::min(next_look, deadline.left()));
    if (!awaited.loop->wait_until(until) && deadline.left() <= Seconds(0)) {
      awaited.fail({Failure::Kind::DeadlinePassed, "deadline passed"});
    }
  }
}

void TcpLink::Impl::fail(const StreamFault& fault) const
{
  const std::string progress = total_ ? fmt::format("{} of {} B", connections_.payload_moved(), *total_) : "no message";
  const StreamFault cause = cancelled_ ? StreamFault{Failure::Kind::Cancelled, "cancelled"} : fault;
  throw_failure(environment_failure(
      cause.kind, fmt::format("{}: {} after {}: {}", label_, progress, in_seconds(time_since(began_)), cause.text)));
}

void TcpLink::Impl::close(const Failure& reason)
{
  if (!unusable_) unusable_ = reason;
  connections_.close();
}

void TcpLink::Impl::begin_send(Bytes header, std::span<const Bytes> payload)
{
  const auto total = total_of(payload);
  total_ = total;
  frame_ = {.header = static_cast<std::uint32_t>(header.size()), .payload = total};
  const auto stripes = stripes_of(payload, total, stripe_count(total, connections_.size()));
  std::vector<Bytes> first = {std::as_bytes(std::span(&frame_, 1)), header};
  first.insert(first.end(), stripes[0].begin(), stripes[0].end());
  connections_.write(0, first, sizeof frame_ + header.size());
  for (std::size_t i = 1; i < stripes.size(); ++i) connections_.write(i, stripes[i], 0);
}

void TcpLink::Impl::begin_frame()
{
  connections_.read(0, {std::as_writable_bytes(std::span(&frame_, 1))}, LinkConnections::no_payload);
}

void TcpLink::Impl::begin_header()
{
  if (frame_.mark != Frame::expected_mark) fail({Failure::Kind::Other, "received data is not a message"});
  if (frame_.header > longest_header) {
    fail({Failure::Kind::Other,
          fmt::format("received a header of {} B; the limit is {} B", frame_.header, longest_header)});
  }
  header_.resize(frame_.header);
  connections_.read(0, {std::span(header_)}, LinkConnections::no_payload);
}

void TcpLink::Impl::begin_payload(const Room& room)
{
  const auto buffers = room(header_);
  const auto total = total_of<std::byte>(buffers);
  total_ = frame_.payload;
  if (total != frame_.payload) {
    fail({Failure::Kind::Other,
          fmt::format("received a payload of {} B; its buffers hold {} B", frame_.payload, total)});
  }
  const auto stripes = stripes_of<std::byte>(buffers, total, stripe_count(total, connections_.size()));
  for (std::size_t i = 0; i < stripes.size(); ++i) connections_.read(i, stripes[i], 0);
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

TcpLink::TcpLink(const LinkName& name, std::size_t self, const std::string& title, std::vector<Connection> connections,
                 std::shared_ptr<TcpLoop> loop)
    : impl_(std::make_unique<Impl>(name, self, title, std::move(connections), std::move(loop)))
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
  // All links are marked before any connection is shut down: otherwise one could blame its peer for closing.
  for (auto* link : links) link->impl_->mark_cancelled();
  for (auto* link : links) link->impl_->connections().shut_down();
}

std::uint64_t TcpLink::bytes_sent() const
{
  return impl_->sent;
}

std::uint64_t TcpLink::moves() const
{
  return impl_->connections().moves();
}

bool TcpLink::is_closed() const
{
  return impl_->connections().is_closed();
}

}  // namespace isobar::exec
