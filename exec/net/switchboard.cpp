#include "exec/net/switchboard.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <sys/socket.h>
#include <algorithm>
#include <map>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds first_pause(10);
constexpr std::chrono::milliseconds longest_pause(500);
/// A call without an answer is made anew: the first may have met a process that died, or an address that swallows it.
/// Nor is a caller waited for longer.
constexpr std::chrono::seconds patience(10);
/// Callers who have not proved the secret yet. A rank that makes room calls again.
constexpr std::size_t most_strangers = 256;

constexpr const char* not_proved = "it does not prove the secret: it is another program, or a rank with another secret";
constexpr const char* not_believed = "it hangs up on the proof of the secret: give all ranks the same one";

/// A connection counts once the caller has confirmed it; one whose caller died before does not take its place.
using Confirmation = char;

template <typename Part>
auto buffer_of(Part& part)
{
  return asio::buffer(&part, sizeof part);
}

/// What both ends of a connection have.
struct Line {
  explicit Line(asio::io_context& context) : socket(context), timer(context) {}

  tcp::socket socket;
  asio::steady_timer timer;
  std::unique_ptr<Tls> tls;
  Challenge challenge;
  Claim claim;
  Verdict verdict;
  Confirmation confirmation = '!';
};

struct Call : Line {
  Call(asio::io_context& context, const Secret& secret, Endpoint callee, const Purpose& what_for)
      : Line(context), peer(std::move(callee)), purpose(what_for), handshake(secret, what_for)
  {
  }

  Endpoint peer;
  Purpose purpose;
  Switchboard::Connected connected;
  Switchboard::TurnedAway turned_away;
  CallerHandshake handshake;
  std::size_t attempt = 0;
  std::chrono::milliseconds pause = first_pause;
  std::string trouble = "no answer";
  bool done = false;
};

/// Somebody who called here.
struct Caller : Line {
  Caller(asio::io_context& context, const Secret& secret) : Line(context), handshake(secret)
  {
    challenge = handshake.challenge();
  }

  AcceptorHandshake handshake;
  bool proved = false;
};

using LinePointer = std::shared_ptr<Line>;
using CallPointer = std::shared_ptr<Call>;
using CallerPointer = std::shared_ptr<Caller>;

bool is_stranger(const CallerPointer& caller)
{
  return !caller->proved;
}

/// Whether the process, or the machine, has as many open files as it may have.
bool is_shortage(const error_code& error)
{
  namespace errc = boost::system::errc;
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
         error == errc::no_buffer_space || error == errc::not_enough_memory;
}

/// Takes the steps of TLS's handshake; then calls `ended`, with what went wrong or "".
template <typename Ended>
void secure(const LinePointer& line, Ended ended)
{
  const auto progress = line->tls->shake_hands();
  if (progress.waits == Tls::Progress::Waits::No) {
    if (!progress.fault.empty()) return ended("TLS: " + progress.fault);
    return ended(progress.error == 0 ? "" : std::generic_category().message(progress.error));
  }
  const bool reads = progress.waits == Tls::Progress::Waits::UntilReadable;
  line->socket.async_wait(reads ? tcp::socket::wait_read : tcp::socket::wait_write,
                          [line, ended = std::move(ended)](const error_code& error) mutable {
                            if (error || !line->socket.is_open()) return ended("no answer");
                            secure(line, std::move(ended));
                          });
}

/// The connection, for messages.
Flow flow_of(Line& line)
{
  error_code ignored;
  line.socket.set_option(tcp::no_delay(true), ignored);
  return {Descriptor(line.socket.release()), std::move(line.tls)};
}

}  // namespace

class Switchboard::Impl {
 public:
  Impl(std::shared_ptr<const Secret> secret, bool tls) : secret_(std::move(secret)), tls_(tls) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Nobody listens any longer, though a parent process may have the port open too.
  ~Impl()
  {
    if (acceptor_.is_open()) ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
  }

  void listen(TcpListener listener, Objection objection, Connected connected);
  std::size_t call(const Endpoint& peer, const Purpose& purpose, Connected connected, TurnedAway turned_away);

  asio::io_context context{1};
  std::vector<CallPointer> calls;
  std::size_t unproved = 0;  ///< calls from somebody who claimed to know the secret
  std::string last_unproved;
  std::string shortage;  ///< why no more calls were taken once; "" else

 private:
  void dial(const CallPointer& call);
  void introduce(const CallPointer& call);
  void hear(const CallPointer& call);
  void confirm(const CallPointer& call);
  void finish(const CallPointer& call);
  void dial_again(const CallPointer& call, const std::string& trouble);

  void accept();
  void accept_later();
  std::size_t strangers() const;
  void keep_strangers(std::size_t most);
  void challenge(const CallerPointer& caller);
  void examine(const CallerPointer& caller);
  void reply_to(const CallerPointer& caller);
  void await_confirmation(const CallerPointer& caller);
  void admit(const CallerPointer& caller);
  void drop(const CallerPointer& caller);

  std::shared_ptr<const Secret> secret_;
  bool tls_;
  std::map<std::string, std::vector<tcp::endpoint>> addresses_;  ///< of peers, as far as they are known
  tcp::acceptor acceptor_{context};
  Objection objection_;
  Connected connected_;
  std::vector<CallerPointer> callers_;
  std::size_t most_strangers_ = most_strangers;
  asio::steady_timer pause_{context};
  std::minstd_rand random_{std::random_device{}()};
};

std::size_t Switchboard::Impl::call(const Endpoint& peer, const Purpose& purpose, Connected connected,
                                    TurnedAway turned_away)
{
  auto call = std::make_shared<Call>(context, *secret_, peer, purpose);
  call->connected = std::move(connected);
  call->turned_away = std::move(turned_away);
  calls.push_back(call);
  dial(call);
  return calls.size() - 1;
}

void Switchboard::Impl::dial(const CallPointer& call)
{
  auto& addresses = addresses_[text_of(call->peer)];
  if (addresses.empty()) {
    // Blocks; the system's resolver has time limits of its own.
    error_code error;
    tcp::resolver resolver(context);
    const auto found =
        resolver.resolve(call->peer.host, std::to_string(call->peer.port), tcp::resolver::numeric_service, error);
    if (error) return dial_again(call, error.message());
    for (const auto& entry : found) addresses.push_back(entry.endpoint());
  }
  call->timer.expires_after(patience);
  call->timer.async_wait([call, attempt = call->attempt](const error_code& error) {
    error_code ignored;
    if (!error && !call->done && call->attempt == attempt) call->socket.close(ignored);
  });
  call->socket = tcp::socket(context);
  call->socket.async_connect(addresses[call->attempt % addresses.size()], [this, call](const error_code& error) {
    if (error) return dial_again(call, error == asio::error::operation_aborted ? "no answer" : error.message());
    error_code ignored;
    // A call to a free port of this machine can get that very port for its own, and reach itself.
    if (call->socket.local_endpoint(ignored) == call->socket.remote_endpoint(ignored)) {
      return dial_again(call, "nobody is there");
    }
    introduce(call);
  });
}

void Switchboard::Impl::introduce(const CallPointer& call)
{
  const auto claimed = [this, call](const error_code& error, std::size_t) {
    if (error) return dial_again(call, "it hangs up");
    hear(call);
  };
  asio::async_read(call->socket, buffer_of(call->challenge),
                   [this, call, claimed](const error_code& error, std::size_t) {
                     if (error)
                       return dial_again(call, error == asio::error::operation_aborted ? "no answer" : "it hangs up");
                     call->claim = call->handshake.claim(call->challenge);
                     asio::async_write(call->socket, buffer_of(call->claim), claimed);
                   });
}

void Switchboard::Impl::hear(const CallPointer& call)
{
  asio::async_read(call->socket, buffer_of(call->verdict), [this, call](const error_code& error, std::size_t) {
    if (error) return dial_again(call, error == asio::error::operation_aborted ? "no answer" : not_believed);
    const auto reason = call->handshake.reason_of(call->verdict);
    if (!reason) return dial_again(call, not_proved);
    if (reason->empty()) return confirm(call);
    call->timer.cancel();
    call->turned_away(shown(*reason, sizeof call->verdict.reason));
  });
}

void Switchboard::Impl::confirm(const CallPointer& call)
{
  asio::async_write(call->socket, buffer_of(call->confirmation), [this, call](const error_code& error, std::size_t) {
    if (error) return dial_again(call, "it hangs up");
    if (!tls_) return finish(call);
    call->tls = std::make_unique<Tls>(call->socket.native_handle(), Tls::Side::Caller, call->handshake.session_key());
    secure(call, [this, call](const std::string& trouble) {
      if (!trouble.empty()) return dial_again(call, trouble);
      finish(call);
    });
  });
}

void Switchboard::Impl::finish(const CallPointer& call)
{
  if (!call->socket.is_open()) return dial_again(call, "no answer");  // patience has just ended
  call->done = true;
  call->timer.cancel();
  call->connected(call->purpose, flow_of(*call));
}

void Switchboard::Impl::dial_again(const CallPointer& call, const std::string& trouble)
{
  call->trouble = trouble;
  ++call->attempt;
  error_code ignored;
  call->socket.close(ignored);
  call->tls.reset();
  call->timer.expires_after(call->pause);
  call->timer.async_wait([this, call](const error_code& error) {
    if (!error) dial(call);
  });
  call->pause = std::min(call->pause * 3 / 2, longest_pause);
}

void Switchboard::Impl::listen(TcpListener listener, Objection objection, Connected connected)
{
  ensure(!acceptor_.is_open(), "a switchboard listens on one port");
  const auto protocol = listener.is_ipv6() ? tcp::v6() : tcp::v4();
  acceptor_.assign(protocol, listener.release().release());
  objection_ = std::move(objection);
  connected_ = std::move(connected);
  accept();
}

void Switchboard::Impl::accept()
{
  const auto caller = std::make_shared<Caller>(context, *secret_);
  acceptor_.async_accept(caller->socket, [this, caller](const error_code& error) {
    if (error == asio::error::operation_aborted) return;
    if (is_shortage(error)) {
      // What is left by half of the strangers serves the calls of this rank too.
      shortage = error.message();
      most_strangers_ = std::max<std::size_t>(strangers() / 2, 1);
      keep_strangers(strangers() / 2);
      return accept_later();
    }
    if (error) throw EnvironmentError("cannot take calls: " + error.message());
    callers_.push_back(caller);
    keep_strangers(most_strangers_);
    challenge(caller);
    accept();
  });
}

void Switchboard::Impl::accept_later()
{
  pause_.expires_after(first_pause);
  pause_.async_wait([this](const error_code& error) {
    if (!error) accept();
  });
}

std::size_t Switchboard::Impl::strangers() const
{
  return static_cast<std::size_t>(std::count_if(callers_.begin(), callers_.end(), is_stranger));
}

void Switchboard::Impl::keep_strangers(std::size_t most)
{
  for (auto count = strangers(); count > most; --count) {
    // Any but the newest, so that a flood, however fast, leaves each caller some chance.
    std::uniform_int_distribution<std::size_t> place(0, std::max<std::size_t>(count, 2) - 2);
    auto found = std::find_if(callers_.begin(), callers_.end(), is_stranger);
    for (auto steps = place(random_); steps > 0; --steps) found = std::find_if(found + 1, callers_.end(), is_stranger);
    drop(CallerPointer(*found));
  }
}

void Switchboard::Impl::challenge(const CallerPointer& caller)
{
  caller->timer.expires_after(patience);
  caller->timer.async_wait([this, caller](const error_code& error) {
    if (!error) drop(caller);
  });
  asio::async_write(caller->socket, buffer_of(caller->challenge), [this, caller](const error_code& error, std::size_t) {
    if (error) return drop(caller);
    examine(caller);
  });
}

void Switchboard::Impl::examine(const CallerPointer& caller)
{
  asio::async_read(caller->socket, buffer_of(caller->claim), [this, caller](const error_code& error, std::size_t) {
    if (error) return drop(caller);
    if (caller->handshake.is_proved_by(caller->claim)) {
      caller->proved = true;
      return reply_to(caller);
    }
    ++unproved;
    error_code unknown;
    const auto address = caller->socket.remote_endpoint(unknown).address();
    last_unproved = unknown ? "an unknown address" : address.to_string();
    drop(caller);
  });
}

void Switchboard::Impl::reply_to(const CallerPointer& caller)
{
  const auto objection = objection_(caller->claim.purpose);
  caller->verdict = caller->handshake.verdict(objection);
  asio::async_write(caller->socket, buffer_of(caller->verdict),
                    [this, caller, welcome = objection.empty()](const error_code& error, std::size_t) {
                      if (error || !welcome) return drop(caller);
                      await_confirmation(caller);
                    });
}

void Switchboard::Impl::await_confirmation(const CallerPointer& caller)
{
  asio::async_read(
      caller->socket, buffer_of(caller->confirmation), [this, caller](const error_code& error, std::size_t) {
        if (error) return drop(caller);
        if (!tls_) return admit(caller);
        caller->tls =
            std::make_unique<Tls>(caller->socket.native_handle(), Tls::Side::Acceptor, caller->handshake.session_key());
        secure(caller, [this, caller](const std::string& trouble) { trouble.empty() ? admit(caller) : drop(caller); });
      });
}

void Switchboard::Impl::admit(const CallerPointer& caller)
{
  const bool welcome = caller->socket.is_open() && objection_(caller->claim.purpose).empty();
  if (welcome) connected_(caller->claim.purpose, flow_of(*caller));
  drop(caller);
}

void Switchboard::Impl::drop(const CallerPointer& caller)
{
  error_code ignored;
  caller->socket.close(ignored);
  caller->timer.cancel();
  std::erase(callers_, caller);
}

Switchboard::Switchboard(std::shared_ptr<const Secret> secret, bool tls)
{
  ensure(secret != nullptr, "whoever connects knows a secret");
  impl_ = std::make_unique<Impl>(std::move(secret), tls);
}

Switchboard::~Switchboard() = default;

void Switchboard::listen(TcpListener listener, Objection objection, Connected connected)
{
  impl_->listen(std::move(listener), std::move(objection), std::move(connected));
}

std::size_t Switchboard::call(const Endpoint& peer, const Purpose& purpose, Connected connected, TurnedAway turned_away)
{
  return impl_->call(peer, purpose, std::move(connected), std::move(turned_away));
}

bool Switchboard::work(Clock::time_point deadline)
{
  throw_if_interrupted();
  // In short waits, since a signal that another thread gets wakes nobody here.
  const auto next_look = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
  impl_->context.restart();  // it stops whenever it has nothing left to do
  return impl_->context.run_one_until(next_look) > 0 || Clock::now() < deadline;
}

const std::string& Switchboard::trouble(std::size_t call) const
{
  return impl_->calls.at(call)->trouble;
}

std::string Switchboard::strangers() const
{
  std::string text;
  if (impl_->unproved > 0) {
    text = fmt::format("; {} {} not prove the secret (the last one from {}): give all ranks the same one",
                       impl_->unproved, impl_->unproved == 1 ? "call did" : "calls did", impl_->last_unproved);
  }
  if (!impl_->shortage.empty()) text += "; not all calls could be taken at once: " + impl_->shortage;
  return text;
}

}  // namespace isobar::exec
