#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace isobar::exec {

/// 32 bytes that nobody else is to know; wiped at the end, never copied.
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

/// What all ranks of a run know and nobody else. Of the words that it was made of, only a key is kept.
class Secret {
 public:
  static constexpr std::size_t shortest = 16;  ///< bytes
  static constexpr std::size_t longest = 4096;
  static constexpr const char* variable = "ISOBAR_SECRET";

  /// @throws InputError naming `where` (a file, a variable) for words too short or too long; it shows nothing of them.
  Secret(const std::string& where, std::string_view words);
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() = default;

  /// A key for one use, the same for whoever knows the secret, and telling nothing about that of another use: another
  /// label, or another context. HKDF with SHA-256 (RFC 5869).
  Key key(std::string_view label, std::span<const std::byte> context = {}) const;

 private:
  Key root_;
};

/// From a file's one line, without the end of the line. @throws InputError when it is missing, when others than its
/// owner may read or change it, and as Secret does.
std::shared_ptr<const Secret> secret_from_file(const std::string& file);
/// From the environment variable ISOBAR_SECRET, which is wiped and removed, so that neither children nor /proc show it
/// any longer; nothing when it is not set, or empty, and none was kept. @throws as Secret does. Call it while the
/// process has one thread.
std::shared_ptr<const Secret> secret_from_environment();
/// Wipes the variable now; later calls of secret_from_environment, in forked children too, find the secret in memory.
void keep_secret_of_environment();
/// One that nobody can guess.
std::shared_ptr<const Secret> random_secret();

}  // namespace isobar::exec
