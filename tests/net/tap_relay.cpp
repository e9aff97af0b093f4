// Wires with a delay, for networks made of namespaces on kernels without netem. Needs CAP_NET_ADMIN and /dev/net/tun.
//
//   tap_relay NAME,NAME,DELAY_MS …
//
// Each argument is a wire: two TAP devices with these names in the namespace of the relay. Frames sent into one come
// out of the other DELAY_MS later, in order. The devices may be moved to other namespaces once the relay has printed
// "ready". It ends with its standard input, and then prints the number of frames that were lost.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t longest_frame = 65536;
constexpr std::size_t longest_queue = std::size_t{256} << 20;  // bytes per direction: never the bottleneck
constexpr int most_events = 64;

[[noreturn]] void fail(const std::string& what)
{
  throw std::system_error(errno, std::generic_category(), what);
}

struct Frame {
  Clock::time_point due;
  std::vector<std::byte> bytes;
};

/// One direction of a wire.
struct Direction {
  int from = -1;
  int to = -1;
  std::chrono::nanoseconds delay{};
  std::deque<Frame> frames;  // by time, since all have the same delay
  std::size_t queued = 0;    // bytes
};

/// Creates a TAP device in this namespace; it exists as long as its descriptor is open.
int open_tap(const std::string& name)
{
  if (name.empty() || name.size() >= IFNAMSIZ) throw std::invalid_argument(name + ": not a name of a device");
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::memcpy(request.ifr_name, name.data(), name.size());
  if (ioctl(tap, TUNSETIFF, &request) < 0) fail(name);
  return tap;
}

class Relay {
 public:
  Relay() : epoll_(epoll_create1(EPOLL_CLOEXEC)), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC))
  {
    if (epoll_ < 0 || timer_ < 0) fail("epoll, timerfd");
    watch(timer_);
    watch(STDIN_FILENO);
  }

  void add_wire(const std::string& one, const std::string& other, std::chrono::nanoseconds delay)
  {
    const std::array taps = {open_tap(one), open_tap(other)};
    directions_.push_back({taps[0], taps[1], delay, {}, 0});
    directions_.push_back({taps[1], taps[0], delay, {}, 0});
    for (const int tap : taps) watch(tap);
  }

  /// Relays frames until standard input ends.
  void run()
  {
    std::array<epoll_event, most_events> events{};
    while (true) {
      const int count = epoll_wait(epoll_, events.data(), most_events, -1);
      if (count < 0 && errno != EINTR) fail("epoll_wait");
      for (int i = 0; i < count; ++i) {
        const int ready = events[static_cast<std::size_t>(i)].data.fd;
        if (ready == STDIN_FILENO && at_end(ready)) return;
        for (auto& direction : directions_) {
          if (direction.from == ready) receive(direction);
        }
      }
      for (auto& direction : directions_) send_due(direction);
      set_timer();
    }
  }

  std::uint64_t lost() const { return lost_; }

 private:
  void watch(int descriptor)
  {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) < 0) fail("epoll_ctl");
  }

  static bool at_end(int input)
  {
    std::array<char, 256> ignored{};
    return read(input, ignored.data(), ignored.size()) <= 0;
  }

  void receive(Direction& direction)
  {
    // A few at a time, so that a busy direction does not delay the others.
    constexpr int at_once = 64;
    for (int i = 0; i < at_once; ++i) {
      const auto length = read(direction.from, buffer_.data(), buffer_.size());
      if (length <= 0) return;
      const auto size = static_cast<std::size_t>(length);
      if (direction.queued + size > longest_queue) {
        ++lost_;
        continue;
      }
      direction.queued += size;
      direction.frames.push_back(
          {Clock::now() + direction.delay, {buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(size)}});
    }
  }

  void send_due(Direction& direction)
  {
    while (!direction.frames.empty() && direction.frames.front().due <= Clock::now()) {
      const auto& bytes = direction.frames.front().bytes;
      // A device that is down loses frames, like an unplugged cable.
      if (write(direction.to, bytes.data(), bytes.size()) < 0 && errno != EIO) ++lost_;
      direction.queued -= bytes.size();
      direction.frames.pop_front();
    }
  }

  /// Sets the timer to the next frame that is due; stops it when there is none.
  void set_timer()
  {
    std::optional<Clock::time_point> next;
    for (const auto& direction : directions_) {
      if (direction.frames.empty()) continue;
      if (!next || direction.frames.front().due < *next) next = direction.frames.front().due;
    }
    itimerspec time{};
    if (next) {
      const auto since_start = std::chrono::duration_cast<std::chrono::nanoseconds>(next->time_since_epoch()).count();
      constexpr std::int64_t second = 1'000'000'000;
      time.it_value.tv_sec = since_start / second;
      time.it_value.tv_nsec = since_start % second;
    }
    if (timerfd_settime(timer_, TFD_TIMER_ABSTIME, &time, nullptr) < 0) fail("timerfd_settime");
  }

  int epoll_;
  int timer_;
  std::vector<Direction> directions_;
  std::array<std::byte, longest_frame> buffer_{};
  std::uint64_t lost_ = 0;
};

void add_wire(Relay& relay, std::string_view text)
{
  const auto first = text.find(',');
  const auto second = first == std::string_view::npos ? first : text.find(',', first + 1);
  const auto fault = [&] { return std::invalid_argument(std::string(text) + ": write NAME,NAME,DELAY_MS"); };
  if (second == std::string_view::npos) throw fault();
  double delay_ms = -1;
  const auto [end, error] = std::from_chars(text.data() + second + 1, text.data() + text.size(), delay_ms);
  constexpr double longest_ms = 1e6;
  if (error != std::errc() || end != text.data() + text.size() || !(delay_ms >= 0 && delay_ms <= longest_ms)) {
    throw fault();
  }
  relay.add_wire(
      std::string(text.substr(0, first)), std::string(text.substr(first + 1, second - first - 1)),
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double, std::milli>(delay_ms)));
}

}  // namespace

int main(int count, char** arguments)
{
  try {
    // The relay acts as a cable, so it has priority over programs that compute. Where that is not allowed, delays grow
    // when all processors are busy.
    const sched_param priority{.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    Relay relay;
    for (int i = 1; i < count; ++i) add_wire(relay, arguments[i]);
    std::puts("ready");
    std::fflush(stdout);
    relay.run();
    std::printf("%llu frames lost\n", static_cast<unsigned long long>(relay.lost()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tap_relay: %s\n", error.what());
    return 3;
  }
  return 0;
}
