#include "exec/net/secret.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <sys/stat.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace isobar::exec {

namespace {

/// A text that is wiped on destruction.
class WipedText {
 public:
  explicit WipedText(std::string text) : text_(std::move(text)) {}
  WipedText(const WipedText&) = delete;
  WipedText& operator=(const WipedText&) = delete;
  ~WipedText() { OPENSSL_cleanse(text_.data(), text_.size()); }

  /// Without the end of the line.
  std::string_view line() const
  {
    std::string_view line = text_;
    for (const char end : {'\n', '\r'}) {
      if (line.ends_with(end)) line.remove_suffix(1);
    }
    return line;
  }

 private:
  std::string text_;
};

OSSL_PARAM bytes_param(const char* name, std::span<const std::byte> bytes)
{
  // OpenSSL only reads them.
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
}

/// One of the two steps of HKDF with SHA-256. `step`: EVP_KDF_HKDF_MODE_...
Key hkdf(int step, std::span<const std::byte> input, const char* name, std::span<const std::byte> more)
{
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  std::string digest = "SHA256";
  const std::array params = {OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &step),
                             OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
                             bytes_param(OSSL_KDF_PARAM_KEY, input), bytes_param(name, more),
                             OSSL_PARAM_construct_end()};
  Key key;
  const int done =
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.bytes().data()), Key::size, params.data());
  if (done != 1) throw EnvironmentError("OpenSSL cannot derive keys (HKDF with SHA-256)");
  return key;
}

/// Text of the environment variable.
std::unique_ptr<const WipedText>& kept_text()
{
  static std::unique_ptr<const WipedText> text;
  return text;
}

}  // namespace

Key::Key(Key&& other) noexcept : bytes_(other.bytes_)
{
  OPENSSL_cleanse(other.bytes_.data(), size);
}

Key& Key::operator=(Key&& other) noexcept
{
  std::swap(bytes_, other.bytes_);
  return *this;
}

Key::~Key()
{
  OPENSSL_cleanse(bytes_.data(), size);
}

Secret::Secret(const std::string& where, std::string_view text)
{
  if (text.size() < shortest || text.size() > longest) {
    throw InputError(where, fmt::format("the secret has {} bytes; it must have {} to {}; create one with: "
                                        "head -c 32 /dev/urandom | base64",
                                        text.size(), shortest, longest));
  }
  constexpr std::string_view salt = "isobar secret 1";
  root_ = hkdf(EVP_KDF_HKDF_MODE_EXTRACT_ONLY, std::as_bytes(std::span(text)), OSSL_KDF_PARAM_SALT,
               std::as_bytes(std::span(salt)));
}

Key Secret::key(std::string_view label, std::span<const std::byte> context) const
{
  const auto begin = std::as_bytes(std::span(label));
  std::vector<std::byte> use(begin.begin(), begin.end());
  use.push_back(std::byte(0));  // separates label and context
  use.insert(use.end(), context.begin(), context.end());
  return hkdf(EVP_KDF_HKDF_MODE_EXPAND_ONLY, root_.bytes(), OSSL_KDF_PARAM_INFO, use);
}

std::shared_ptr<const Secret> secret_from_file(const std::string& file)
{
  struct stat facts = {};
  constexpr auto of_others = S_IRWXG | S_IRWXO;
  if (::stat(file.c_str(), &facts) == 0 && !S_ISDIR(facts.st_mode) && (facts.st_mode & of_others) != 0) {
    throw InputError(file, fmt::format("others may read or change this secret (mode {:o}); run: chmod 600 {}",
                                       facts.st_mode & 07777U, shown(file)));
  }
  const WipedText text(read_file(file));
  return std::make_shared<const Secret>(file, text.line());
}

std::shared_ptr<const Secret> secret_from_environment()
{
  keep_secret_of_environment();
  const auto& text = kept_text();
  return text && !text->line().empty() ? std::make_shared<const Secret>(Secret::variable, text->line()) : nullptr;
}

void keep_secret_of_environment()
{
  char* value = std::getenv(Secret::variable);
  if (value == nullptr) return;
  kept_text() = std::make_unique<const WipedText>(value);
  // In place: /proc shows the memory of the initial environment.
  OPENSSL_cleanse(value, std::strlen(value));
  ::unsetenv(Secret::variable);
}

std::shared_ptr<const Secret> random_secret()
{
  std::array<unsigned char, Key::size> bytes = {};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) {
    throw EnvironmentError("cannot get random bytes from the system");
  }
  auto secret = std::make_shared<const Secret>(
      "random", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

}  // namespace isobar::exec
