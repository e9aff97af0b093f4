#pragma once

#include "core/model/workload.hpp"

#include <cstdint>

/// Generators of a model's layers from its sizes. Each fills `layers` and `input` of a workload whose micro_batch,
/// sequence and dtype are set. Sizes must have passed the checks of core/model/workload_file.cpp.
///
/// Work: two FLOPs per multiply-add, only for matrix products and convolutions (no normalisation, activation function,
/// softmax or embedding look-up). Causal attention counts the whole S x S product. Backward is twice forward: each
/// product has two gradients of its own size. One of them is that of parameters (`backward_weight`), except in the
/// products of attention without parameters, 2BS²H of its multiply-adds.
///
/// Activations: what the backward pass needs, layer by layer, after Korthikanti et al. 2022, "Reducing Activation
/// Recomputation in Large Transformer Models", section 4.1 (s·b·h·(34 + 5·a·s/h) bytes in 16 bit for a transformer
/// layer), with z bytes per element and one byte per element of a dropout mask.
///
/// Splits (Layer::split): attention divides its heads, of keys and values if those are fewer; the MLP the columns of
/// its first product; embedding and head the vocabulary. Norms, positions and the biases of outputs are not divided,
/// nor the inputs and outputs of a layer and its norm, nor a dropout mask of these: together they are Korthikanti's
/// s·b·h·(10 + 24/t + 5·a·s/(h·t)) bytes for t devices.
///
/// Symbols: B micro_batch, S sequence, T = B·S tokens, H hidden, A heads, I intermediate, V vocabulary, z bytes of an
/// element; e = T·H elements of a hidden state, p = B·A·S² attention probabilities. In activations, fused attention
/// replaces the terms in p by 4·B·A·S bytes: the float32 logarithm of each sum of exponentials. Its backward pass
/// recomputes the scores; that is not counted as work.
namespace isobar {

/// BERT with a classifier, divided as in Sky Computing: an embedding, three units per encoder, pooler and classifier;
/// 3·encoders + 3 layers.
///
/// |            | parameters          | multiply-adds    | activations              | output            |
/// |------------|---------------------|------------------|--------------------------|-------------------|
/// | embedding  | (V+positions+2)H+2H | 0                | z·e + e + the input      | z(e + T)          |
/// | attention  | 4(H²+H) + 2H        | 4TH² + 2BS²H     | z(6e + 2p) + e + p       | z(e + T)          |
/// | up         | HI + I              | THI              | z(e + TI)                | z(TI + e + T)     |
/// | down       | HI + H + 2H         | THI              | z(TI + e) + e            | z(e + T)          |
/// | pooler     | H² + H              | BH²              | 2z·BH                    | z·BH              |
/// | classifier | classes·(H + 1)     | B·H·classes      | (z+1)BH + z·B·classes    | z·B·classes       |
///
/// The z·T of an output is the attention mask, which has no gradient. Input: three int64 tensors, 24·T bytes. Memory by
/// Sky's estimator is z·(2·outputs + 2·parameters + inputs), where outputs counts the return values of every module of
/// the unit, containers included (published code, hpcaitech/SkyComputing at 456c749):
///
/// |            | outputs         | inputs     |
/// |------------|-----------------|------------|
/// | embedding  | 6e + T          | 3T         |
/// | attention  | 10e + p + T     | e + T      |
/// | up         | 3TI + e + T     | e + T      |
/// | down       | 5e + T          | TI + e + T |
/// | pooler     | 2BH             | e + T      |
/// | classifier | BH + 2B·classes | BH         |
void build_bert(const BertSizes& sizes, Workload& workload);

/// A decoder with normalisation before attention and MLP, like GPT-2 and GPT-3; layers + 2 layers, and 2·layers + 2 if
/// attention and MLP are layers of their own. A block is the two, and its output that of the MLP.
///
/// |           | parameters           | multiply-adds   | activations                     | output |
/// |-----------|----------------------|-----------------|---------------------------------|--------|
/// | embedding | (V + positions)H     | 0               | e + the input                   | z·e    |
/// | attention | 4(H²+H) + 2H         | 4TH² + 2BS²H    | z(6e + 2p) + e + p              | z·e    |
/// | mlp       | 2HI + I + H + 2H     | 2THI            | z(2e + 2TI) + e                 | z·e    |
/// | head      | 2H + VH              | TVH             | z·2e + 4TV (logits in float32)  | z·TV   |
///
/// The head's VH is a matrix of its own. If the sizes tie it, the head uses the embedding's (Layer::tied_to): it has 2H
/// parameters and no backward_weight, and no layer has a split, since one device has them all. Input: one int64 tensor,
/// 8·T bytes.
void build_gpt(const GptSizes& sizes, Workload& workload);

/// A decoder with RMS normalisation, SwiGLU and grouped-query attention, without biases, dropout and tied matrices,
/// like Llama 2 and 3, divided as a gpt. K = H·kv_heads/A is the width of keys and of values.
///
/// |           | parameters            | multiply-adds                  | activations              | output |
/// |-----------|-----------------------|--------------------------------|--------------------------|--------|
/// | embedding | VH                    | 0                              | the input                | z·e    |
/// | attention | 2H² + 2HK + H         | T(2H² + 2HK) + 2BS²H           | z(4e + 2TK + p)          | z·e    |
/// | mlp       | 3HI + H               | 3THI                           | z(2e + 4TI)              | z·e    |
/// | head      | H + VH                | TVH                            | z·2e + 4TV               | z·TV   |
///
/// Without dropout only the softmax output is kept of the probabilities; SwiGLU keeps gate, its activation, up and
/// their product. Input: one int64 tensor, 8·T bytes.
void build_llama(const LlamaSizes& sizes, Workload& workload);

/// A decoder whose blocks are of several kinds (core/model/decoder/decoder_sizes.hpp): embedding, blocks, blocks of
/// multi-token prediction, head. A block is a layer, or each of its parts is one, "blockN.attention" and "blockN.mlp".
/// gpt and llama are decoders, too; what follows differs from them in attention and SwiGLU.
///
/// Parameters are those of transformers' models; buffers, such as a router's biases for selection, do not count.
/// Work: attention counts the pairs of a token and one that it sees, S(S+1)/2 of S x S in full attention (gpt and llama
/// count all S x S). A token passes through top_k experts. Convolutions count; a delta net adds 4·H·d² multiply-adds a
/// token for H heads of values d wide, and Mamba-2 3.5·D·N for D inner numbers and a state of N (Megatron-LM's counts).
/// Activations are those of fused kernels, bytes of which docs/costs.md#activations-of-decoders lists. Experts keep
/// theirs for each token that comes to them (Layer::experts).
/// Splits: attention divides its heads (of keys and values; of Mamba-2, groups), feed-forward networks and each expert
/// their columns. Products that compress, routers and norms are not divided; shards divide the work of a layer in
/// equal parts as if they were.
void build_decoder(const DecoderSizes& sizes, Workload& workload);

/// A gpt and a llama as decoders with one block: all of theirs are alike.
DecoderSizes decoder_parts_of(const GptSizes& sizes);
DecoderSizes decoder_parts_of(const LlamaSizes& sizes);

/// ResNet with bottleneck blocks (He et al. 2015, table 1), the stride in the 3x3 convolution as in torchvision: stem,
/// one layer per block, head; 18 or 52 layers.
///
/// A convolution of k x k from c to d channels has k²cd parameters and as many multiply-adds per output pixel; a batch
/// normalisation has 2 parameters per channel. Kept for backward: the input of each layer; the output of each
/// convolution before normalisation and, unless it ends a block, after it; the stem's 8-byte indices of the maximum.
/// Input: three channels in the workload's dtype.
void build_resnet(const ResnetSizes& sizes, Workload& workload);

/// A transformer whose odd layers, counted from 0, have experts: embedding, `layers` blocks, head; layers + 2 layers.
/// Each has the sums of its operators (core/spmd/operator_graph.hpp). Its output is what the next layer reads of it.
/// Input: hidden states or images in the workload's dtype, or one int64 tensor of token numbers, 8·T bytes.
void build_moe(const spmd::MoeSizes& sizes, Workload& workload);

}  // namespace isobar
