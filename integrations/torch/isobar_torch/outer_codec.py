"""How outer gradients are encoded to travel between workers (docs/rounds.md#codecs)."""

import dataclasses
import math
import re

import numpy
import torch

BLOCK = 1024  # values that share a scale of int8 and int4
CHUNK = 4096  # of each, top-k sends the largest values
PLACE_BITS = 12  # of a value's place in its chunk
DENSE = ("fp32", "bf16", "int8", "int4")
TOP_K = re.compile(r"top-k (\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)( 2-bit)?")


@dataclasses.dataclass(frozen=True)
class Codec:
    """A codec of plans of rounds. `fraction` and `value_bits` are those of top-k."""

    name: str
    fraction: float = 1.0
    value_bits: int = 16

    @property
    def is_sparse(self) -> bool:
        """Whether it drops values, which are then sent later (error feedback)."""
        return self.name not in DENSE

    def size(self, values: int) -> int:
        """The bytes of float32 values, encoded."""
        blocks = -(-values // BLOCK)
        if self.is_sparse:
            return values // CHUNK * self._chunk_size(CHUNK) + self._chunk_size(values % CHUNK)
        return {"fp32": 4 * values, "bf16": 2 * values, "int8": values + 4 * blocks,
                "int4": -(-values // 2) + 2 * blocks}[self.name]

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Encodes a vector of finite float32 values, on the CPU, as bytes.

        int8 and int4 err by at most half a block's scale. Raises ValueError for values that the codec's scales cannot have.
        """
        if self.is_sparse:
            return self._encode_top_k(values)
        if self.name == "int8":
            return _encode_int8(values)
        if self.name == "int4":
            return _encode_int4(values)
        return values.to(torch.float32 if self.name == "fp32" else torch.bfloat16).view(torch.uint8)

    def decode(self, encoded: torch.Tensor, values: int) -> torch.Tensor:
        """The float32 values that `encode` made these bytes of, as far as the codec keeps them."""
        if self.is_sparse:
            return self._decode_top_k(encoded, values)
        if self.name == "int8":
            return _decode_int8(encoded, values)
        if self.name == "int4":
            return _decode_int4(encoded, values)
        return encoded.clone().view(torch.float32 if self.name == "fp32" else torch.bfloat16).float()

    def _kept(self, values: int) -> int:
        return min(values, math.ceil(self.fraction * values))

    def _chunk_size(self, values: int) -> int:
        if values == 0:
            return 0
        scale = 2 if self.value_bits == 2 else 0
        return scale + -(-self._kept(values) * (PLACE_BITS + self.value_bits) // 8)

    def _encode_top_k(self, values: torch.Tensor) -> torch.Tensor:
        whole = len(values) // CHUNK * CHUNK
        parts = [self._encode_chunks(part.view(-1, width)).flatten() for part, width in
                 ((values[:whole], CHUNK), (values[whole:], len(values) - whole)) if len(part)]
        return torch.cat(parts)

    def _encode_chunks(self, chunks: torch.Tensor) -> torch.Tensor:
        places = chunks.abs().topk(self._kept(chunks.shape[1]), dim=1).indices.sort(dim=1).values
        kept = chunks.gather(1, places)
        if self.value_bits == 16:
            codes = places << 16 | kept.bfloat16().view(torch.int16).long() & 0xFFFF
            return _packed(codes, PLACE_BITS + 16)
        scale = _half_above(kept.abs().amax(dim=1, keepdim=True))
        codes = places << 2 | (kept < 0).long() << 1 | (kept.abs() > scale.float() * (2 / 3)).long()
        return torch.cat((scale.view(torch.uint8), _packed(codes, PLACE_BITS + 2)), dim=1)

    def _decode_top_k(self, encoded: torch.Tensor, values: int) -> torch.Tensor:
        whole = values // CHUNK
        cut = whole * self._chunk_size(CHUNK)
        parts = [self._decode_chunks(part.view(-1, self._chunk_size(width)), width).flatten() for part, width in
                 ((encoded[:cut], CHUNK), (encoded[cut:], values % CHUNK)) if len(part)]
        return torch.cat(parts)

    def _decode_chunks(self, chunks: torch.Tensor, width: int) -> torch.Tensor:
        kept = self._kept(width)
        if self.value_bits == 16:
            codes = _unpacked(chunks, kept, PLACE_BITS + 16)
            found = (codes & 0xFFFF).to(torch.int32).to(torch.int16).view(torch.bfloat16).float()
        else:
            codes = _unpacked(chunks[:, 2:], kept, PLACE_BITS + 2)
            scale = chunks[:, :2].clone(memory_format=torch.contiguous_format).view(torch.float16).float()
            size = torch.where(codes & 1 == 1, scale, scale / 3)
            found = torch.where(codes & 2 == 2, -size, size)
        return torch.zeros(len(chunks), width).scatter_(1, codes >> self.value_bits, found)


def codec_of(text: str) -> Codec | None:
    """The codec with that name in plans of rounds; None for another text."""
    if text in DENSE:
        return Codec(text)
    found = TOP_K.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= 1:
        return None
    return Codec(text, float(found[1]), 2 if found[2] else 16)


def _blocks(values: torch.Tensor) -> torch.Tensor:
    padded = values.new_zeros(-(-len(values) // BLOCK) * BLOCK)
    padded[:len(values)] = values
    return padded.view(-1, BLOCK)


def _rounded(blocks: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
    """Whole numbers -most to most of blocks over their scales. Blocks of a scale of 0 are 0."""
    return torch.where(scale > 0, blocks / scale, 0).round().clamp(-most, most)


def _half_above(values: torch.Tensor) -> torch.Tensor:
    """The least float16 that is not below each value, so that no value is larger than its scale allows."""
    half = values.half()
    half = torch.where(half.float() < values, (half.view(torch.int16) + 1).view(torch.float16), half)
    if half.isinf().any():
        raise ValueError(f"a block whose scale is {values.max():g}, too large for float16; use int8 or bf16")
    return half


def _encode_int8(values: torch.Tensor) -> torch.Tensor:
    blocks = _blocks(values)
    scale = blocks.abs().amax(dim=1, keepdim=True) / 127
    rounded = _rounded(blocks, scale, 127).to(torch.int8).flatten()[:len(values)]
    return torch.cat((scale.flatten().view(torch.uint8), rounded.view(torch.uint8)))


def _decode_int8(encoded: torch.Tensor, values: int) -> torch.Tensor:
    cut = -(-values // BLOCK) * 4
    scale = encoded[:cut].clone().view(torch.float32)
    return (_blocks(encoded[cut:].view(torch.int8).float()) * scale[:, None]).flatten()[:values]


def _encode_int4(values: torch.Tensor) -> torch.Tensor:
    blocks = _blocks(values)
    scale = _half_above(blocks.abs().amax(dim=1, keepdim=True) / 7)
    # From 1 to 15; two values a byte, the first one in the low half. What pads the last byte is 0.
    halves = (_rounded(blocks, scale.float(), 7) + 8).to(torch.uint8).flatten()[:-(-len(values) // 2) * 2].view(-1, 2)
    return torch.cat((scale.flatten().view(torch.uint8), halves[:, 0] | halves[:, 1] << 4))


def _decode_int4(encoded: torch.Tensor, values: int) -> torch.Tensor:
    cut = -(-values // BLOCK) * 2
    scale = encoded[:cut].clone().view(torch.float16).float()
    halves = torch.stack((encoded[cut:] & 15, encoded[cut:] >> 4), dim=1).flatten()[:values].float() - 8
    return (_blocks(halves) * scale[:, None]).flatten()[:values]


def _packed(codes: torch.Tensor, width: int) -> torch.Tensor:
    """Codes of `width` bits, row by row; each row begins at a byte."""
    bits = codes.numpy()[:, :, None] >> numpy.arange(width - 1, -1, -1) & 1
    return torch.from_numpy(numpy.packbits(bits.astype(numpy.uint8).reshape(len(codes), -1), axis=1))


def _unpacked(rows: torch.Tensor, count: int, width: int) -> torch.Tensor:
    bits = numpy.unpackbits(rows.numpy(), axis=1, count=count * width).reshape(len(rows), count, width)
    return torch.from_numpy(bits.astype(numpy.int64) @ (1 << numpy.arange(width - 1, -1, -1)))
