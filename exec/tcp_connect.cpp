#include "exec/tcp_connect.hpp"

#include "core/errors.hpp"
#include "core/interrupt.hpp"

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <deque>
#include <memory>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace isobar::exec {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds first_pause(10);
constexpr std::chrono::milliseconds longest_pause(500);
/// A call without an answer is made anew: the first may have met a process that died, or an address that swallows it.
constexpr std::chrono::seconds patience(10);
/// Callers who are not known yet, beyond those awaited; the oldest makes room for a new one. A rank that is dropped
/// calls again.
constexpr std::size_t most_strangers = 256;

static_assert(std::endian::native == std::endian::little, "the handshake travels as it lies in memory");

template <std::size_t size>
using Text = std::array<char, size>;

/// Padded with zeros, and cut when it is too long.
template <std::size_t size>
Text<size> padded(std::string_view text)
{
  Text<size> out = {};
  std::copy_n(text.begin(), std::min(size, text.size()), out.begin());
  return out;
}

/// What the caller says first.
struct Hello {
  Text<8> mark = padded<8>("isobar>");
  std::uint32_t version = 1;
  std::uint32_t ranks = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t channel = 0;
  std::uint32_t flow = 0;
  std::uint32_t flows = 0;
  Text<64> world = {};
};

/// What it hears. Its mark is another one, so that a socket connected to itself is noticed.
struct Answer {
  Text<8> mark = padded<8>("isobar<");
  std::uint32_t refused = 0;
  Text<116> reason = {};
};

/// A connection counts once the caller has confirmed it; one whose caller died before does not take its place.
using Confirmation = char;

static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 100);
static_assert(std::is_trivially_copyable_v<Answer> && sizeof(Answer) == 128);

std::string text_of(const Endpoint& endpoint)
{
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{0}{1}{2}:{3}", is_ipv6 ? "[" : "", shown(endpoint.host), is_ipv6 ? "]" : "", endpoint.port);
}

/// Blocks; the system's resolver has time limits of its own.
std::vector<tcp::endpoint> addresses_of(asio::io_context& context, const Endpoint& endpoint, error_code& error)
{
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::numeric_service, error);
  std::vector<tcp::endpoint> addresses;
  for (const auto& entry : found) addresses.push_back(entry.endpoint());
  return addresses;
}

tcp::endpoint local_address(int socket)
{
  tcp::endpoint address;
  auto length = static_cast<socklen_t>(address.capacity());
  if (::getsockname(socket, address.data(), &length) != 0) {
    throw EnvironmentError(
        fmt::format("descriptor {} is no socket: {}", socket, std::generic_category().message(errno)));
  }
  address.resize(length);
  return address;
}

/// One flow of a link that begins here.
struct Call {
  Call(asio::io_context& context, Endpoint callee) : peer(std::move(callee)), socket(context), timer(context) {}

  Endpoint peer;
  LinkName link;
  Hello hello;
  Answer answer;
  Confirmation confirmation = '!';
  std::size_t attempt = 0;
  std::chrono::milliseconds pause = first_pause;
  std::string trouble = "no answer";  ///< why there is no connection yet
  bool done = false;
  tcp::socket socket;
  asio::steady_timer timer;
};

/// Somebody who called here.
struct Caller {
  explicit Caller(tcp::socket accepted) : socket(std::move(accepted)) {}

  Hello hello;
  Answer answer;
  Confirmation confirmation = 0;
  tcp::socket socket;
};

/// One rank's part in connecting all links.
class Connecting {
 public:
  Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
             const TcpOptions& options, TcpListener listener);

  std::map<LinkName, std::vector<Descriptor>> run(Clock::time_point deadline);

 private:
  using CallPointer = std::shared_ptr<Call>;
  using CallerPointer = std::shared_ptr<Caller>;

  void dial(const CallPointer& call);
  void introduce(const CallPointer& call);
  void hear(const CallPointer& call);
  void dial_again(const CallPointer& call, const std::string& trouble);

  void accept();
  void listen_to(const CallerPointer& caller);
  void reply_to(const CallerPointer& caller);
  void admit(const CallerPointer& caller);
  /// Why a caller is turned away; "" if it is welcome.
  std::string objection_to(const Hello& hello) const;

  void keep(const LinkName& link, std::size_t flow, tcp::socket& socket);
  std::string awaited() const;

  std::size_t rank_;
  const std::vector<Endpoint>& ranks_;
  const TcpOptions& options_;
  Clock::time_point began_ = Clock::now();

  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  std::map<std::size_t, std::vector<tcp::endpoint>> addresses_of_rank_;  // as far as they are known
  std::deque<CallerPointer> strangers_;
  std::vector<CallPointer> calls_;
  std::map<LinkName, std::vector<Descriptor>> flows_;
  std::size_t missing_ = 0;
  std::string refusal_;
};

Connecting::Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                       const TcpOptions& options, TcpListener listener)
    : rank_(rank), ranks_(ranks), options_(options)
{
  auto socket = listener.release();
  acceptor_.assign(local_address(socket.number()).protocol(), socket.number());
  socket.release();
  for (const auto& link : links) {
    if (link.from != rank && link.to != rank) continue;
    ensure(flows_.try_emplace(link, options.flows).second, "a link is named once");
    missing_ += options.flows;
    for (std::size_t flow = 0; link.from == rank && flow < options.flows; ++flow) {
      auto call = std::make_shared<Call>(context_, ranks[link.to]);
      call->link = link;
      call->hello.ranks = static_cast<std::uint32_t>(ranks.size());
      call->hello.from = static_cast<std::uint32_t>(link.from);
      call->hello.to = static_cast<std::uint32_t>(link.to);
      call->hello.channel = link.channel;
      call->hello.flow = static_cast<std::uint32_t>(flow);
      call->hello.flows = static_cast<std::uint32_t>(options.flows);
      call->hello.world = padded<64>(options.world);
      calls_.push_back(call);
    }
  }
}

std::map<LinkName, std::vector<Descriptor>> Connecting::run(Clock::time_point deadline)
{
  accept();
  for (const auto& call : calls_) dial(call);
  while (missing_ > 0) {
    throw_if_interrupted();
    const auto next_look = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
    const bool idle = context_.run_one_until(next_look) == 0;
    if (!refusal_.empty()) throw EnvironmentError(refusal_);
    if (idle && Clock::now() >= deadline) {
      throw EnvironmentError(
          fmt::format("rank {}: still waiting after {} for {}", rank_, in_seconds(time_since(began_)), awaited()));
    }
  }
  return std::move(flows_);
}

void Connecting::keep(const LinkName& link, std::size_t flow, tcp::socket& socket)
{
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  flows_.at(link)[flow] = Descriptor(socket.release());
  --missing_;
}

std::string Connecting::awaited() const
{
  std::map<std::size_t, std::string> trouble_of_rank;
  for (const auto& [link, flows] : flows_) {
    const bool whole = std::all_of(flows.begin(), flows.end(), [](const auto& flow) { return flow.is_open(); });
    if (link.to == rank_ && !whole) trouble_of_rank[link.from] = "has not called";
  }
  for (const auto& call : calls_) {
    if (!call->done) trouble_of_rank[call->link.to] = fmt::format("{}: {}", text_of(call->peer), call->trouble);
  }
  std::string text;
  for (const auto& [rank, trouble] : trouble_of_rank) {
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, trouble);
  }
  return text;
}

void Connecting::dial(const CallPointer& call)
{
  auto& addresses = addresses_of_rank_[call->link.to];
  if (addresses.empty()) {
    error_code error;
    addresses = addresses_of(context_, call->peer, error);
    if (error) return dial_again(call, error.message());
  }
  call->timer.expires_after(patience);
  call->timer.async_wait([call, attempt = call->attempt](const error_code& error) {
    error_code ignored;
    if (!error && !call->done && call->attempt == attempt) call->socket.close(ignored);
  });
  call->socket = tcp::socket(context_);
  call->socket.async_connect(addresses[call->attempt % addresses.size()], [this, call](const error_code& error) {
    if (error) return dial_again(call, error == asio::error::operation_aborted ? "no answer" : error.message());
    introduce(call);
  });
}

void Connecting::introduce(const CallPointer& call)
{
  call->trouble = "no answer";
  asio::async_write(call->socket, asio::buffer(&call->hello, sizeof(Hello)),
                    [this, call](const error_code& error, std::size_t) {
                      if (error) return dial_again(call, "hung up");
                      hear(call);
                    });
}

void Connecting::hear(const CallPointer& call)
{
  const auto confirmed = [this, call](const error_code& error, std::size_t) {
    if (error) return dial_again(call, "hung up");
    call->done = true;
    call->timer.cancel();
    keep(call->link, call->hello.flow, call->socket);
  };
  asio::async_read(call->socket, asio::buffer(&call->answer, sizeof(Answer)),
                   [this, call, confirmed](const error_code& error, std::size_t) {
                     if (error) {
                       return dial_again(call, error == asio::error::operation_aborted ? "no answer" : "hung up");
                     }
                     const auto& answer = call->answer;
                     if (answer.mark != Answer().mark) return dial_again(call, "another program answers");
                     if (answer.refused == 0) {
                       asio::async_write(call->socket, asio::buffer(&call->confirmation, 1), confirmed);
                       return;
                     }
                     const auto end = std::find(answer.reason.begin(), answer.reason.end(), '\0');
                     refusal_ = fmt::format("rank {}: rank {} at {} turns it away: {}", rank_, call->link.to,
                                            text_of(call->peer), shown(std::string(answer.reason.begin(), end), 116));
                   });
}

void Connecting::dial_again(const CallPointer& call, const std::string& trouble)
{
  call->trouble = trouble;
  ++call->attempt;
  error_code ignored;
  call->socket.close(ignored);
  call->timer.expires_after(call->pause);
  call->timer.async_wait([this, call](const error_code& error) {
    if (!error) dial(call);
  });
  call->pause = std::min(call->pause * 3 / 2, longest_pause);
}

void Connecting::accept()
{
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) throw EnvironmentError(fmt::format("rank {}: cannot take calls: {}", rank_, error.message()));
    strangers_.push_back(std::make_shared<Caller>(std::move(socket)));
    if (strangers_.size() > most_strangers + missing_) {
      error_code ignored;
      strangers_.front()->socket.close(ignored);
      strangers_.pop_front();
    }
    listen_to(strangers_.back());
    accept();
  });
}

void Connecting::listen_to(const CallerPointer& caller)
{
  asio::async_read(caller->socket, asio::buffer(&caller->hello, sizeof(Hello)),
                   [this, caller](const error_code& error, std::size_t) {
                     if (error || caller->hello.mark != Hello().mark) {
                       std::erase(strangers_, caller);
                     } else {
                       reply_to(caller);
                     }
                   });
}

void Connecting::reply_to(const CallerPointer& caller)
{
  const auto objection = objection_to(caller->hello);
  caller->answer.refused = objection.empty() ? 0 : 1;
  caller->answer.reason = padded<116>(objection);
  const auto confirmed = [this, caller](const error_code& error, std::size_t) {
    if (!error) admit(caller);
    std::erase(strangers_, caller);
  };
  asio::async_write(caller->socket, asio::buffer(&caller->answer, sizeof(Answer)),
                    [this, caller, confirmed](const error_code& error, std::size_t) {
                      if (error || caller->answer.refused != 0) {
                        std::erase(strangers_, caller);
                      } else {
                        asio::async_read(caller->socket, asio::buffer(&caller->confirmation, 1), confirmed);
                      }
                    });
}

std::string Connecting::objection_to(const Hello& hello) const
{
  const Hello ours;
  if (hello.version != ours.version) return fmt::format("it speaks version {}, not {}", ours.version, hello.version);
  if (hello.world != padded<64>(options_.world)) return "it belongs to another world";
  if (hello.ranks != ranks_.size()) return fmt::format("it has {} ranks, not {}", ranks_.size(), hello.ranks);
  if (hello.to != rank_) return fmt::format("it is rank {}", rank_);
  if (hello.flows != options_.flows) return fmt::format("it uses {} flows, not {}", options_.flows, hello.flows);
  const auto found = flows_.find({.from = hello.from, .to = hello.to, .channel = hello.channel});
  if (found == flows_.end() || hello.flow >= hello.flows) {
    return fmt::format("it expects no flow {} of channel {} from rank {}", hello.flow, hello.channel, hello.from);
  }
  return found->second[hello.flow].is_open() ? fmt::format("rank {} is connected already", hello.from) : "";
}

void Connecting::admit(const CallerPointer& caller)
{
  // Somebody else may have taken the place since.
  const auto& hello = caller->hello;
  if (!objection_to(hello).empty()) return;
  keep({.from = hello.from, .to = hello.to, .channel = hello.channel}, hello.flow, caller->socket);
}

}  // namespace

TcpListener::TcpListener(const Endpoint& endpoint)
{
  asio::io_context context;
  error_code error;
  const auto addresses = addresses_of(context, endpoint, error);
  tcp::acceptor acceptor(context);
  const auto attempt = [&](auto step) {
    if (!error) step();
  };
  attempt([&] { acceptor.open(addresses.front().protocol(), error); });
  // Connections of an earlier run that still linger are no hindrance; somebody who listens is.
  attempt([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  attempt([&] { acceptor.bind(addresses.front(), error); });
  attempt([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
  if (error) throw EnvironmentError(fmt::format("cannot listen on {}: {}", text_of(endpoint), error.message()));
  socket_ = Descriptor(acceptor.release());
  ::fcntl(socket_.number(), F_SETFD, FD_CLOEXEC);
}

TcpListener::TcpListener(Descriptor socket) : socket_(std::move(socket))
{
  ::fcntl(socket_.number(), F_SETFD, FD_CLOEXEC);
}

std::uint16_t TcpListener::port() const
{
  return local_address(socket_.number()).port();
}

std::map<LinkName, std::vector<Descriptor>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                          const std::vector<LinkName>& links, const TcpOptions& options,
                                                          TcpListener listener, Clock::time_point deadline)
{
  return Connecting(rank, ranks, links, options, std::move(listener)).run(deadline);
}

Endpoint endpoint_from_text(const std::string& option, const std::string& text)
{
  const auto colon = text.rfind(':');
  const auto fault = [&] {
    return InputError(option, in_quotes(text) + " is no place; write host:port, such as 10.0.0.2:29500");
  };
  if (colon == std::string::npos || colon == 0) throw fault();
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) throw fault();
  return {host, port};
}

}  // namespace isobar::exec
