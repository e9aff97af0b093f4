#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace isobar::exec {

/// 32 secret bytes; wiped on destruction, never copied.
class Key {
 public:
  static constexpr std::size_t size = 32;

  Key() = default;
  Key(Key&& other) noexcept;
  Key& operator=(Key&& other) noexcept;
  ~Key();

  std::span<std::byte, size> bytes() { return bytes_; }
  std::span<const std::byte, size> bytes() const { return bytes_; }

 private:
  std::array<std::byte, size> bytes_ = {};
};

/// Secret shared by all ranks of a run and unknown to everyone else. Only a key derived from its text is kept.
class Secret {
 public:
  static constexpr std::size_t shortest = 16;  ///< bytes
  static constexpr std::size_t longest = 4096;
  static constexpr const char* variable = "ISOBAR_SECRET";

  /// @throws InputError naming `where` (a file, a variable) when the text is too short or too long. The message shows
  /// none of the text.
  Secret(const std::string& where, std::string_view text);
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() = default;

  /// Derives a key for one use by HKDF with SHA-256 (RFC 5869). Equal for equal secrets; reveals nothing about the key
  /// of any other use, that is of another label or context.
  Key key(std::string_view label, std::span<const std::byte> context = {}) const;

 private:
  Key root_;
};

/// Reads the secret from the only line of a file, without the end of the line.
/// @throws InputError when the file is missing, when others than its owner may read or change it, and as Secret does.
std::shared_ptr<const Secret> secret_from_file(const std::string& file);
/// Secret in the environment variable ISOBAR_SECRET. The variable is wiped and removed, so that neither child processes
/// nor /proc show it. nullptr when it is empty or not set, and none was kept. Call it while the process has one thread.
/// @throws as Secret does.
std::shared_ptr<const Secret> secret_from_environment();
/// Wipes the variable now. Later calls of secret_from_environment, also in forked children, use the copy in memory.
void keep_secret_of_environment();
/// A random secret.
std::shared_ptr<const Secret> random_secret();

}  // namespace isobar::exec
