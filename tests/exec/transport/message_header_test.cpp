#include "exec/transport/message_header.hpp"

#include "core/errors.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace isobar::exec::message_header_test {
namespace {

TcpLink::Bytes bytes_of(const std::vector<std::int64_t>& header)
{
  return std::as_bytes(std::span(header));
}

std::string refusal_of(const std::vector<std::int64_t>& header, Bytes most)
{
  try {
    allocate_message(bytes_of(header), TensorMemory::Pageable, most);
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

TEST(MessageHeader, DescribesTheTensorsThatTheReceiverAllocates)
{
  Message sent;
  sent.tensors = {at::ones({2, 3, 4}), at::ones({5}, at::kLong)};
  sent.differentiable = {true, false};
  const auto header = header_of(sent);
  const Message received = allocate_message(bytes_of(header), TensorMemory::Pageable, Bytes(2 * 3 * 4 * 4 + 5 * 8));
  ASSERT_EQ(received.tensors.size(), 2U);
  EXPECT_EQ(received.tensors[0].sizes(), sent.tensors[0].sizes());
  EXPECT_EQ(received.tensors[1].scalar_type(), at::kLong);
  EXPECT_EQ(received.differentiable, sent.differentiable);
}

TEST(MessageHeader, IsRefusedBeforeTensorsBeyondTheLimitAreAllocated)
{
  constexpr std::int64_t is_float = 6;
  constexpr std::int64_t longest = std::int64_t{1} << 40;
  EXPECT_EQ(refusal_of({is_float, 1, 2, 1024, 1024}, Bytes(4 * 0x1p20)), "");
  EXPECT_EQ(refusal_of({is_float, 1, 2, 1024, 1025}, Bytes(4 * 0x1p20)),
            "a message of 4.00 MiB or more; at most 4.00 MiB is expected");
  EXPECT_EQ(refusal_of({is_float, 1, 1, 600, is_float, 1, 1, 600}, Bytes(4096)),
            "a message of 4.69 KiB or more; at most 4.00 KiB is expected");
  for (const auto& shape : {std::vector{longest}, std::vector{longest, longest, longest, longest}}) {
    std::vector<std::int64_t> header = {is_float, 1, static_cast<std::int64_t>(shape.size())};
    header.insert(header.end(), shape.begin(), shape.end());
    EXPECT_NE(refusal_of(header, Bytes(0x1p30)), "");
  }
}

TEST(MessageHeader, IsRefusedWhenItIsMalformed)
{
  constexpr auto fault = "a message has a malformed header";
  const Bytes most(0x1p30);
  EXPECT_EQ(refusal_of({6}, most), fault);
  EXPECT_EQ(refusal_of({6, 2, 0}, most), fault);
  EXPECT_EQ(refusal_of({99, 1, 0}, most), fault);
  EXPECT_EQ(refusal_of({6, 1, 17}, most), fault);
  EXPECT_EQ(refusal_of({6, 1, 1, -1}, most), fault);
  EXPECT_EQ(refusal_of({6, 1, 2, 1}, most), fault);
  EXPECT_EQ(refusal_of({6, 1, 1, std::numeric_limits<std::int64_t>::max()}, most), fault);
}

TEST(MessageHeader, AllowsSeveralTimesTheModelsSize)
{
  Instruction transfer;
  EXPECT_EQ(size_limit(transfer), Bytes(0x1p20));
  transfer.size = Bytes(0x1p20);
  EXPECT_EQ(size_limit(transfer), Bytes(5 * 0x1p20));
}

}  // namespace
}  // namespace isobar::exec::message_header_test
