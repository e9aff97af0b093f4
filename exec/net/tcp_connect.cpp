#include "exec/net/tcp_connect.hpp"

#include "core/errors.hpp"
#include "exec/net/connection_manager.hpp"

#include <fmt/format.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace isobar::exec {

namespace {

static_assert(std::endian::native == std::endian::little, "what is said of a link travels as it lies in memory");

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

/// The purpose of a call: which flow of which link it is, and what both ends must agree on.
struct Hello {
  Text<8> mark = padded<8>("link");
  std::uint32_t version = 3;
  std::uint32_t ranks = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t channel = 0;
  std::uint32_t flow = 0;
  std::uint32_t flows = 0;
  std::uint32_t tls = 0;
  std::uint64_t first_step = 0;
  Text<64> run_id = {};
};
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 112 && sizeof(Hello) <= sizeof(Purpose));

Hello hello_of(const Purpose& purpose)
{
  Hello hello;
  std::memcpy(&hello, purpose.data(), sizeof hello);
  return hello;
}

LinkName link_of(const Hello& hello)
{
  return {.from = hello.from, .to = hello.to, .channel = hello.channel};
}

std::size_t flows_of(const LinkName& link, const TcpOptions& options)
{
  return link.channel < first_narrow_channel ? options.flows : 1;
}

bool is_connected(const Flow& flow)
{
  return flow.socket.is_open() && !is_closed_by_peer(flow.socket);
}

void set_option(int socket, int level, int name, int value)
{
  ::setsockopt(socket, level, name, &value, sizeof value);
}

/// While ranks meet, nothing else tells of a machine that has vanished: within 9 s its connections count as closed.
void watch(int socket)
{
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  // Nothing asks after a peer that still has bytes to acknowledge, such as a handshake's last ones.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 9000);
}

/// What a rank's links keep open: a socket for each connection, and three descriptors of the loop of each link; as many
/// for calls, while they are connected.
std::size_t files_of(std::size_t rank, const std::vector<LinkName>& links, const TcpOptions& options)
{
  constexpr std::size_t of_loop = 3;
  std::size_t files = of_loop;
  for (const auto& link : links) {
    if (link.from == rank || link.to == rank) files += of_loop + flows_of(link, options);
  }
  return files;
}

/// @throws EnvironmentError when this process may not open so many files more, and some that others will want.
void require_files(std::size_t wanted)
{
  constexpr std::size_t for_others = 8;
  rlimit limit = {};
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (error || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto opened = static_cast<std::size_t>(std::distance(begin(open), end(open)));
  if (opened + wanted + for_others <= limit.rlim_cur) return;
  throw EnvironmentError(
      fmt::format("its connections need about {} open files beside the {} of this process, which may open {}: raise "
                  "the limit (ulimit -n {})",
                  wanted + for_others, opened, limit.rlim_cur, std::bit_ceil(opened + wanted + for_others)));
}

const char* travel(bool tls)
{
  return tls ? "TLS" : "plain text";
}

/// One rank's part in connecting all links.
class Connecting {
 public:
  Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
             const TcpOptions& options, TcpListener listener);

  std::map<LinkName, std::vector<Flow>> run(Clock::time_point deadline);

 private:
  struct Call {
    std::size_t to = 0;
    std::size_t number = 0;  ///< the connection_manager's
    bool done = false;
  };

  void call(const LinkName& link, std::size_t flow);
  void forget_who_is_gone();
  bool all_are_here();
  /// Why a caller is turned away; "" if it is welcome.
  std::string objection_to(const Hello& hello) const;
  void keep(const Hello& hello, Flow flow);
  std::string awaited() const;

  std::size_t rank_;
  const std::vector<Endpoint>& ranks_;
  const TcpOptions& options_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point looked_ = began_;  ///< for ranks that are gone

  ConnectionManager connection_manager_;
  std::vector<Call> calls_;
  std::map<LinkName, std::vector<Flow>> flows_;
  std::size_t missing_ = 0;
  std::string refusal_;
};

Connecting::Connecting(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                       const TcpOptions& options, TcpListener listener)
    : rank_(rank), ranks_(ranks), options_(options), connection_manager_(options.secret, options.tls)
{
  for (const auto& link : links) {
    if (link.from != rank && link.to != rank) continue;
    const auto [place, is_new] = flows_.try_emplace(link);
    ensure(is_new, "a link is named once");
    const std::size_t flows = flows_of(link, options);
    place->second.resize(flows);
    missing_ += flows;
    for (std::size_t flow = 0; link.from == rank && flow < flows; ++flow) call(link, flow);
  }
  connection_manager_.listen(
      std::move(listener), [this](const Purpose& purpose) { return objection_to(hello_of(purpose)); },
      [this](const Purpose& purpose, Flow flow) { keep(hello_of(purpose), std::move(flow)); });
}

void Connecting::call(const LinkName& link, std::size_t flow)
{
  Hello hello;
  hello.ranks = static_cast<std::uint32_t>(ranks_.size());
  hello.from = static_cast<std::uint32_t>(link.from);
  hello.to = static_cast<std::uint32_t>(link.to);
  hello.channel = link.channel;
  hello.flow = static_cast<std::uint32_t>(flow);
  hello.flows = static_cast<std::uint32_t>(options_.flows);
  hello.tls = options_.tls ? 1 : 0;
  hello.first_step = options_.first_step;
  hello.run_id = padded<64>(options_.run_id);
  Purpose purpose = {};
  std::memcpy(purpose.data(), &hello, sizeof hello);
  const std::size_t place = calls_.size();
  calls_.push_back({.to = link.to});
  calls_[place].number = connection_manager_.connect(
      ranks_[link.to], purpose,
      [this, hello, place](const Purpose&, Flow connected) {
        calls_[place].done = true;
        keep(hello, std::move(connected));
      },
      [this, to = link.to](const std::string& reason) {
        if (!refusal_.empty()) return;
        refusal_ = fmt::format("rank {}: rank {} at {} turns it away: {}", rank_, to, text_of(ranks_[to]), reason);
      });
}

/// A rank that died while others were awaited may be started again.
void Connecting::forget_who_is_gone()
{
  looked_ = Clock::now();
  for (auto& [link, flows] : flows_) {
    for (std::size_t flow = 0; flow < flows.size(); ++flow) {
      if (!flows[flow].socket.is_open() || is_connected(flows[flow])) continue;
      flows[flow] = Flow();
      ++missing_;
      if (link.from == rank_) call(link, flow);
    }
  }
}

bool Connecting::all_are_here()
{
  if (missing_ == 0) forget_who_is_gone();
  return missing_ == 0;
}

std::map<LinkName, std::vector<Flow>> Connecting::run(Clock::time_point deadline)
{
  // Who leaves at the very end has given up, and is not the one that all have waited for.
  const auto last_look = deadline - (deadline - began_) / 10;
  constexpr std::chrono::milliseconds pause(100);
  while (!all_are_here()) {
    const bool in_time = connection_manager_.work(deadline);
    if (const auto now = Clock::now(); now < last_look && now - looked_ > pause) forget_who_is_gone();
    if (!refusal_.empty()) {
      const auto end = deadline_in(Seconds(1));
      while (connection_manager_.work(end)) continue;
      throw EnvironmentError(refusal_);
    }
    if (!in_time) {
      const auto option = options_.connect_option.empty() ? "" : fmt::format(" ({})", options_.connect_option);
      throw EnvironmentError(fmt::format("rank {}: still waiting after {}{} for {}{}", rank_,
                                         in_seconds(time_since(began_)), option, awaited(),
                                         connection_manager_.unauthenticated()));
    }
  }
  return std::move(flows_);
}

void Connecting::keep(const Hello& hello, Flow flow)
{
  Flow& place = flows_.at(link_of(hello))[hello.flow];
  if (!place.socket.is_open()) --missing_;
  place = std::move(flow);
  watch(place.socket.number());
}

std::string Connecting::awaited() const
{
  std::map<std::size_t, std::string> trouble_of_rank;
  for (const auto& [link, flows] : flows_) {
    const bool whole = std::all_of(flows.begin(), flows.end(), [](const Flow& flow) { return flow.socket.is_open(); });
    if (link.to == rank_ && !whole) trouble_of_rank[link.from] = "has not called";
  }
  for (const auto& call : calls_) {
    if (call.done) continue;
    trouble_of_rank[call.to] =
        fmt::format("{}: {}", text_of(ranks_[call.to]), connection_manager_.trouble(call.number));
  }
  std::string text;
  for (const auto& [rank, trouble] : trouble_of_rank) {
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, trouble);
  }
  return text;
}

std::string Connecting::objection_to(const Hello& hello) const
{
  const Hello ours;
  if (hello.mark != ours.mark) return "it takes calls of links alone";
  if (hello.version != ours.version) return fmt::format("it speaks version {}, not {}", ours.version, hello.version);
  if (hello.run_id != padded<64>(options_.run_id)) {
    return "it belongs to another world: give all ranks the same plan, data and options, and each run ports of its own";
  }
  if (hello.first_step != options_.first_step) {
    return fmt::format("it begins at step {}, not {}", options_.first_step, hello.first_step);
  }
  if (hello.ranks != ranks_.size()) return fmt::format("it has {} ranks, not {}", ranks_.size(), hello.ranks);
  if (hello.to != rank_) return fmt::format("it is rank {}", rank_);
  if (hello.flows != options_.flows) return fmt::format("it uses {} flows, not {}", options_.flows, hello.flows);
  if ((hello.tls != 0) != options_.tls) {
    return fmt::format("it uses {}, not {}: give all ranks the same of --tls and --plain-text", travel(options_.tls),
                       travel(!options_.tls));
  }
  const auto found = flows_.find(link_of(hello));
  if (found == flows_.end() || hello.flow >= found->second.size()) {
    return fmt::format("it expects no flow {} of channel {} from rank {}", hello.flow, hello.channel, hello.from);
  }
  return is_connected(found->second[hello.flow]) ? fmt::format("rank {} is connected already", hello.from) : "";
}

}  // namespace

std::map<LinkName, std::vector<Flow>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                    const std::vector<LinkName>& links, const TcpOptions& options,
                                                    TcpListener listener, Clock::time_point deadline)
{
  require_files(files_of(rank, links, options));
  return Connecting(rank, ranks, links, options, std::move(listener)).run(deadline);
}

void watch_no_more(int socket)
{
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 0);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
}

void allow_all_descriptors()
{
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace isobar::exec
