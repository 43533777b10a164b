import ctypes as C, numpy as np, time, sys
L=C.CDLL('/tmp/nat/libk.so')
P=C.c_void_p
L.kvcast_instructions.restype=C.c_char_p
L.kvcast_open.restype=P; L.kvcast_open.argtypes=[C.c_char_p,C.c_int]
L.kvcast_packed_bytes.restype=C.c_size_t; L.kvcast_packed_bytes.argtypes=[P,C.c_int,C.c_int]
L.kvcast_attention_bytes.restype=C.c_size_t; L.kvcast_attention_bytes.argtypes=[P,C.c_int,C.c_int,C.c_int]
class R(C.Structure): _fields_=[('codes',P),('scales',P),('offsets',P),('inputs',C.c_int)]
def p(a): return a.ctypes.data_as(P)
def rounded(m,k):
    a=(np.zeros((m,k),np.int8),np.zeros((m,k//64),np.float32),np.zeros((m,k//64),np.int32))
    return R(*(x.ctypes.data for x in a),k),a
print([L.kvcast_instructions(i) for i in range(3)])
ms={n:L.kvcast_open(n,t) for n,t in ((b'plain',1),(b'avx512_bf16',2))}
rng=np.random.default_rng(0)
M,K,N=37,192,128
x=rng.normal(size=(M,K)).astype(np.float32); w=rng.integers(-127,128,(N,K)).astype(np.int8); s=rng.random(N).astype(np.float32)*.01; b=rng.normal(size=N).astype(np.float32)
outs={}
for n,m in ms.items():
    r,keep=rounded(M,K); L.kvcast_round(P(m),p(x),M,C.byref(r))
    pk=np.zeros(L.kvcast_packed_bytes(m,N,K),np.uint8); L.kvcast_pack(P(m),p(w),p(s),p(b),N,K,p(pk))
    o=np.zeros((M,N),np.float32); L.kvcast_product(P(m),p(pk),N,C.byref(r),M,0,p(o),None)
    r2,k2=rounded(M,N); L.kvcast_product(P(m),p(pk),N,C.byref(r),M,2,None,C.byref(r2))
    outs[n]=(keep,o,k2)
a,c=outs.values()
print(all((u==v).all() for u,v in zip(a[0],c[0])), (a[1]==c[1]).all(), abs(a[1]-(x@(w*s[:,None]).T+b)).max(), abs(a[2][0].astype(int)-c[2][0]).max())
for T,H,D in ((1500,2,64),(70,3,80),(5,1,16)):
    qkv=rng.normal(size=(T,3*H*D)).astype(np.float32)*2; o={}
    for n,m in ms.items():
        sp=np.full(L.kvcast_attention_bytes(m,T,H,D),255,np.uint8); o[n]=np.full((T,H*D),np.nan,np.float32)
        L.kvcast_encoder_attention(P(m),p(qkv),T,H,D,C.c_float(D**-.5),p(sp),p(o[n]))
    q,k,v=(qkv[:,i*H*D:(i+1)*H*D].reshape(T,H,D).transpose(1,0,2).astype(float) for i in range(3))
    e=q@k.transpose(0,2,1)*D**-.5; e=np.exp(e-e.max(-1,keepdims=True)); ref=(e/e.sum(-1,keepdims=True)@v).transpose(1,0,2).reshape(T,-1)
    print(T,H,D,[abs(y-ref).max() for y in o.values()], ref.std())
m=ms[b'avx512_bf16']; T,H,D=1500,8,64
qkv=rng.normal(size=(T,3*H*D)).astype(np.float32); sp=np.empty(L.kvcast_attention_bytes(m,T,H,D),np.uint8); o=np.empty((T,H*D),np.float32)
K,N=512,2048; x=rng.normal(size=(T,K)).astype(np.float32); w=rng.integers(-127,128,(N,K)).astype(np.int8); s=np.ones(N,np.float32)*1e-4; b=np.zeros(N,np.float32)
pk=np.zeros(L.kvcast_packed_bytes(m,N,K),np.uint8); L.kvcast_pack(P(m),p(w),p(s),p(b),N,K,p(pk)); r,keep=rounded(T,K); r2,k2=rounded(T,N)
for _ in range(4):
    t=time.perf_counter(); L.kvcast_encoder_attention(P(m),p(qkv),T,H,D,C.c_float(.125),p(sp),p(o)); t1=time.perf_counter(); L.kvcast_round(P(m),p(x),T,C.byref(r)); t2=time.perf_counter(); L.kvcast_product(P(m),p(pk),N,C.byref(r),T,2,None,C.byref(r2)); t3=time.perf_counter()
    print(f"attention {(t1-t)*1e3:.1f} round {(t2-t1)*1e3:.2f} up {(t3-t2)*1e3:.2f}")
