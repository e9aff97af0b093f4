#include "core/base/child_process.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace isobar {

namespace {

using Clock = std::chrono::steady_clock;

/// Longest sleep of the parent between two checks for an interrupt or an ended child.
constexpr int poll_milliseconds = 5;
/// How much of a child's stderr is kept.
constexpr std::size_t kept_error_bytes = 65536;
/// Largest output of a child: far more than the largest plan.
constexpr std::size_t most_output_bytes = 256 << 20;
/// How much of the last line on stderr is shown.
constexpr std::size_t shown_error_bytes = 300;

Clock::time_point deadline_in(Seconds time)
{
  const std::chrono::duration<double> left(std::min(time.value, 1e9));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe()
  {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw EnvironmentError(fmt::format("cannot create a pipe: {}", std::strerror(errno)));
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(Pipe&& other) noexcept
      : read_end(std::exchange(other.read_end, -1)), write_end(std::exchange(other.write_end, -1))
  {
  }
  Pipe& operator=(Pipe&&) = delete;
  ~Pipe()
  {
    close_read();
    close_write();
  }
  void close_read() { close_end(read_end); }
  void close_write() { close_end(write_end); }

 private:
  static void close_end(int& end)
  {
    if (end >= 0) close(std::exchange(end, -1));
  }
};

void write_all(int descriptor, const std::string& text)
{
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    done += static_cast<std::size_t>(count);
  }
}

/// True in a child. Each child leads a process group of its own, so that one signal ends it and all that it starts.
bool is_child = false;

/// In the child: dies with its parent, and handles requests to stop as any program does.
void become_child(pid_t parent)
{
  if (!is_child) setpgid(0, 0);
  is_child = true;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe must fail with an error, not kill the child
}

/// In the child: the work's result ('D') or failure ('F'), after that character.
std::string outcome_of(const std::function<std::string()>& work)
{
  try {
    return 'D' + work();
  } catch (const std::exception& error) {
    return 'F' + serialize_failure(failure_of(error));
  }
}

std::string last_line(std::string text)
{
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  const auto newline = text.find_last_of('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

/// A running child, seen from its parent. Killed and reaped when it is destroyed before its end.
class Child {
 public:
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child()
  {
    if (pid_ > 0) end_now();
  }

  /// Forks; `body` runs in the child with the write ends of its output and error pipes and the read end of its input.
  Child(const std::function<void(int output, int error, int input)>& body, std::string input, Seconds time_limit)
      : input_text_(std::move(input)), deadline_(deadline_in(time_limit))
  {
    std::fflush(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw EnvironmentError(fmt::format("cannot start a child process: {}", std::strerror(errno)));
    if (pid_ == 0) {
      become_child(parent);
      body(output_.write_end, error_.write_end, input_.read_end);
      _exit(0);
    }
    if (!is_child) setpgid(pid_, pid_);
    output_.close_write();
    error_.close_write();
    input_.close_read();
    fcntl(input_.write_end, F_SETFL, O_NONBLOCK);
    if (input_text_.empty()) {
      input_.close_write();
    } else {
      std::signal(SIGPIPE, SIG_IGN);  // a child need not read its input to the end
    }
  }

  void add_to(std::vector<pollfd>& polled) const
  {
    if (output_.read_end >= 0) polled.push_back({output_.read_end, POLLIN, 0});
    if (error_.read_end >= 0) polled.push_back({error_.read_end, POLLIN, 0});
    if (input_.write_end >= 0) polled.push_back({input_.write_end, POLLOUT, 0});
  }

  void handle(const pollfd& event)
  {
    if (event.revents == 0) return;
    if (event.fd == output_.read_end) {
      read_into(output_, output_text_);
    } else if (event.fd == error_.read_end) {
      read_into(error_, error_text_);
      if (error_text_.size() > 2 * kept_error_bytes) error_text_.erase(0, error_text_.size() - kept_error_bytes);
    } else if (event.fd == input_.write_end) {
      feed();
    }
  }

  /// The wait status, once the child has ended; its pipes are then drained. Processes that it left behind are killed,
  /// and their output is not waited for.
  std::optional<int> ended()
  {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    forget();
    for (const int end : {output_.read_end, error_.read_end}) {
      if (end >= 0) fcntl(end, F_SETFL, O_NONBLOCK);
    }
    while (output_.read_end >= 0 && read_into(output_, output_text_)) {
    }
    while (error_.read_end >= 0 && read_into(error_, error_text_)) {
    }
    return status;
  }
  bool overdue() const { return Clock::now() >= deadline_; }
  void ask_to_stop() const { kill(pid_, SIGINT); }
  /// Brings the time limit forward.
  void hurry(Seconds time_left) { deadline_ = std::min(deadline_, deadline_in(time_left)); }

  /// Kills the child with all that it started, and reaps it.
  void end_now()
  {
    kill(is_child ? pid_ : -pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    forget();
  }

  std::string& output() { return output_text_; }
  std::string& errors() { return error_text_; }

  bool has_too_much_output() const { return output_text_.size() > most_output_bytes; }
  std::string last_error_line() const { return shown(last_line(error_text_), shown_error_bytes); }

  std::string describe_end(int status) const
  {
    const std::string last = last_error_line();
    const std::string end = WIFSIGNALED(status)
                                ? fmt::format("died of signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                : fmt::format("exited with code {}", WEXITSTATUS(status));
    return last.empty() ? end : fmt::format("{}; last line on stderr: {}", end, last);
  }

 private:
  void forget()
  {
    if (!is_child) kill(-pid_, SIGKILL);  // processes that it left behind in its group
    pid_ = -1;
  }

  /// False when there is nothing to read; the pipe is closed at its end.
  static bool read_into(Pipe& pipe, std::string& text)
  {
    char buffer[65536];
    const ssize_t count = read(pipe.read_end, buffer, sizeof buffer);
    if (count > 0) {
      text.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      pipe.close_read();
    }
    return count > 0;
  }

  void feed()
  {
    const ssize_t count = write(input_.write_end, input_text_.data() + fed_, input_text_.size() - fed_);
    if (count > 0) fed_ += static_cast<std::size_t>(count);
    const bool failed = count < 0 && errno != EINTR && errno != EAGAIN;
    if (failed || fed_ == input_text_.size()) input_.close_write();
  }

  pid_t pid_ = -1;
  Pipe output_;
  Pipe error_;
  Pipe input_;
  std::string input_text_;
  std::size_t fed_ = 0;
  std::string output_text_;
  std::string error_text_;
  Clock::time_point deadline_;
};

/// One round of waiting for the children's pipes. Short, because a child's end need not close pipes that others hold.
void exchange(const std::vector<Child*>& children)
{
  std::vector<pollfd> polled;
  for (const Child* child : children) child->add_to(polled);
  if (poll(polled.data(), polled.size(), poll_milliseconds) <= 0) return;
  for (const auto& event : polled) {
    for (Child* child : children) child->handle(event);
  }
}

ChildResult result_of_work(Child& child, int status)
{
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) return {"", failure_of(Interrupted())};
  const std::string& outcome = child.output();
  const bool exited_normally = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (exited_normally && outcome.starts_with('D')) return {outcome.substr(1)};
  if (exited_normally && outcome.starts_with('F')) {
    if (auto failure = parse_failure(std::string_view(outcome).substr(1))) return {"", std::move(failure)};
  }
  return {"", environment_failure(Failure::Kind::Died, child.describe_end(status))};
}

ChildResult too_much_result()
{
  return {"",
          environment_failure(Failure::Kind::Died, fmt::format("answered more than {} MiB", most_output_bytes >> 20))};
}

ChildResult time_out_result(const ChildLimit& limit)
{
  const auto option = limit.option != nullptr ? fmt::format(" ({})", limit.option) : "";
  const auto text = fmt::format("was ended at the time limit of {:.6g} s{}", limit.seconds.value, option);
  return {"", environment_failure(Failure::Kind::Silent, text)};
}

}  // namespace

const std::string& ChildResult::output_or_throw() const
{
  if (!failure) return output;
  Failure thrown = *failure;
  const bool is_end_of_child = thrown.kind == Failure::Kind::Died || thrown.kind == Failure::Kind::Silent;
  if (is_end_of_child && !thrown.rank) thrown.text = "a child process " + thrown.text;
  throw_failure(thrown);
}

std::vector<ChildResult> run_in_children(const std::vector<std::function<std::string()>>& work, std::size_t parallel,
                                         ChildLimit time_limit,
                                         const std::function<void(std::size_t, const ChildResult&)>& on_end,
                                         std::optional<Seconds> grace_after_fault,
                                         const std::function<bool(std::size_t, std::size_t)>& belong_together)
{
  std::vector<ChildResult> results(work.size());
  std::vector<std::pair<std::size_t, std::unique_ptr<Child>>> running;
  std::size_t started = 0;
  std::size_t done = 0;
  while (done < work.size()) {
    throw_if_interrupted();  // the children's destructors kill them
    while (started < work.size() && running.size() < std::max<std::size_t>(1, parallel)) {
      const auto body = [&job = work[started]](int output, int error, int) {
        dup2(error, STDERR_FILENO);
        write_all(output, outcome_of(job));
      };
      running.emplace_back(started++, std::make_unique<Child>(body, "", time_limit.seconds));
    }
    std::vector<Child*> children;
    for (const auto& entry : running) children.push_back(entry.second.get());
    exchange(children);
    for (auto entry = running.begin(); entry != running.end();) {
      auto& [index, child] = *entry;
      if (const auto status = child->ended()) {
        results[index] = result_of_work(*child, *status);
      } else if (child->overdue()) {
        child->end_now();
        results[index] = time_out_result(time_limit);
      } else {
        ++entry;
        continue;
      }
      const std::size_t ended_index = index;
      entry = running.erase(entry);
      ++done;
      if (grace_after_fault && results[ended_index].failure) {
        for (const auto& [other, running_child] : running) {
          if (!belong_together || belong_together(ended_index, other)) running_child->hurry(*grace_after_fault);
        }
      }
      if (on_end) on_end(ended_index, results[ended_index]);
    }
  }
  return results;
}

ChildResult run_in_child(const std::function<std::string()>& work, ChildLimit time_limit)
{
  return run_in_children({work}, 1, time_limit).front();
}

ChildResult run_supervised_child(const std::function<std::string()>& work, const GracefulStop& stop)
{
  if (stop.requested()) throw Interrupted();
  constexpr Seconds no_limit(1e9);
  const auto body = [&](int output, int, int) {
    forget_interrupts();
    catch_interrupts();
    leave_interrupts_to_parent();
    const auto work_unless_stopped = [&] {
      if (stop.requested()) throw Interrupted();
      return work();
    };
    write_all(output, outcome_of(work_unless_stopped));
  };
  Child child(body, "", no_limit);
  bool is_asked = false;
  while (true) {
    throw_if_interrupted();  // the child's destructor kills it
    if (stop.requested() && !std::exchange(is_asked, true)) child.ask_to_stop();
    exchange({&child});
    if (const auto status = child.ended()) return result_of_work(child, *status);
  }
}

ChildResult run_command(const std::vector<std::string>& arguments, const std::string& input, ChildLimit time_limit)
{
  constexpr int cannot_start = 127;
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Child child(
      [&argv](int output, int error, int input_end) {
        dup2(input_end, STDIN_FILENO);
        dup2(output, STDOUT_FILENO);
        dup2(error, STDERR_FILENO);
        for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
        execvp(argv.front(), argv.data());
        write_all(STDERR_FILENO, fmt::format("cannot start: {}", std::strerror(errno)));
        _exit(cannot_start);
      },
      input, time_limit.seconds);
  std::optional<int> status;
  while (!(status = child.ended())) {
    throw_if_interrupted();
    if (child.overdue()) return time_out_result(time_limit);
    if (child.has_too_much_output()) return too_much_result();
    exchange({&child});
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) {
    return {std::move(child.output()), std::nullopt, std::move(child.errors())};
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == cannot_start) {
    throw EnvironmentError(arguments.front(), child.last_error_line());
  }
  Failure end = environment_failure(Failure::Kind::Died, child.describe_end(*status));
  return {std::move(child.output()), std::move(end), std::move(child.errors())};
}

}  // namespace isobar
